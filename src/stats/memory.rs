//! How much memory there is to use.

use std::fs;

/// Bytes that can be used without driving anything out that is in use: of the machine, or of our control group if that
/// leaves less. `None` if the system does not say.
pub fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let number = |name: &str| fs::read_to_string(name).ok()?.trim().parse::<u64>().ok();
    // in a container its own group is the root of what it sees; "max" is no number
    let limit = number("/sys/fs/cgroup/memory.max").or_else(|| number("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    let used =
        number("/sys/fs/cgroup/memory.current").or_else(|| number("/sys/fs/cgroup/memory/memory.usage_in_bytes"));
    let group = limit.map(|limit| limit.saturating_sub(used.unwrap_or(0)));
    machine.into_iter().chain(group).min()
}

/// From the text of `/proc/meminfo`.
fn of_machine(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_how_much_is_available() {
        let text = "MemTotal:       24595844 kB\nMemFree:   1 kB\nMemAvailable:   21036740 kB\nBuffers: 2 kB\n";
        assert_eq!(of_machine(text), Some(21_036_740 * 1024));
        for text in ["", "MemAvailable: many kB", "MemAvailable: 12", "MemAvailable: 99999999999999999999 kB"] {
            assert_eq!(of_machine(text), None, "{text}");
        }
        assert!(available().is_some_and(|bytes| bytes > 0));
    }
}
