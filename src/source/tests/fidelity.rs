//! What is sent is what is there.

use super::*;

#[test]
fn a_tree_comes_out_of_gnu_tar_as_it_was() {
    let src = tree();
    mkdir(src.path(), "empty");
    mkdir(src.path(), "a/b/c");
    write(src.path(), "a/b/c/one", b"1");
    write(src.path(), "a/none", b"");
    write(src.path(), "full block", &noise(1, 512));
    write(src.path(), "almost large", &noise(2, CHUNK_LEN - 1));
    write(src.path(), "one slice", &noise(3, CHUNK_LEN));
    write(src.path(), "large", &noise(4, 3 * CHUNK_LEN + 77));
    write(src.path(), "large and even", &noise(5, 2 * CHUNK_LEN + 512));
    write(src.path(), "zz", b"after the large ones");
    for i in 0..3000 {
        write(src.path(), &format!("a/b/f{i}"), &noise(i, i as usize % 1500));
    }
    std::os::unix::fs::symlink("../nowhere", src.path().join("a/dangling")).unwrap();
    let sent = send_tree(src.path());
    assert_eq!(sent.noted(), []);
    assert_eq!(manifest(untar(&sent.stream()).path()), manifest(src.path()));
    assert_eq!(sent.file("almost large").unwrap(), noise(2, CHUNK_LEN - 1));
    assert_eq!(sent.file("large").unwrap(), noise(4, 3 * CHUNK_LEN + 77));
    assert_eq!(sent.stats.entries_found.load(Relaxed), sent.end.entries);
    assert_eq!(sent.stats.bytes_found.load(Relaxed), sent.end.content_bytes);
}

#[test]
fn order_is_depth_first_bytewise_and_the_same_every_time() {
    let src = tree();
    for name in ["b/x", "b.txt", "b", "a/z/y", "a/z.", "a-", "B"] {
        if !src.path().join(name).exists() {
            mkdir(src.path(), name);
        }
    }
    write(src.path(), "a/z/y/f", b"");
    let paths = send_tree(src.path()).paths();
    assert_eq!(paths, ["", "B", "a", "a/z", "a/z/y", "a/z/y/f", "a/z.", "a-", "b", "b/x", "b.txt"]);
    assert_eq!(send_tree(src.path()).stream(), send_tree(src.path()).stream());
}
