//! What `--compress` means for each chunk: asks the gauge, with a look at the flow and the links, and tells it what
//! came of it. The only clock of compression.

use std::sync::Mutex;
use std::time::Duration;

use crate::chunk::{Buf, ChunkKind, Compressed, Gauge, Look, Sealed, Sealer};
use crate::ids::Seq;
use crate::link::send_session::SendSession;
use crate::options::Compress;

/// How the workers of a session compress.
pub struct Compression {
    fixed: Option<i32>,
    /// `None` unless the level is chosen chunk by chunk.
    gauge: Option<Mutex<Gauge>>,
}

impl Compression {
    /// For so many workers and chunks in the pool.
    pub fn new(compress: Compress, workers: usize, pool: usize) -> Compression {
        match compress {
            Compress::Off => Compression { fixed: None, gauge: None },
            Compress::Level(level) => Compression { fixed: Some(level), gauge: None },
            Compress::Auto => Compression { fixed: None, gauge: Some(Mutex::new(Gauge::new(workers, pool))) },
        }
    }

    /// A sealer for one worker of that session.
    pub fn sealer(&self, session: &SendSession) -> Sealer {
        Sealer::new(self.fixed).keyed(session.keys.chunks())
    }

    /// Seal a chunk of that session, and say how long compressing took.
    pub fn seal(
        &self,
        session: &SendSession,
        sealer: &mut Sealer,
        seq: Seq,
        kind: ChunkKind,
        len: usize,
        buf: Buf,
    ) -> (Sealed, Duration) {
        let gauge =
            self.gauge.as_ref().map(|gauge| || gauge.lock().expect("no thread panics while it holds this lock"));
        let method = gauge.as_ref().and_then(|gauge| gauge().method(look(session, len)));
        if gauge.is_some() {
            let worth_it = method.is_some() && sealer.may_shrink(kind);
            sealer.set_method(method.filter(|_| worth_it));
        }
        let sealed = sealer.seal(seq, kind, len, buf);
        let took = sealer.take_compressed_for();
        if let (Some(gauge), Some(method)) = (&gauge, method) {
            let (now, payload_len) = (session.clock.now(), sealed.payload().len());
            let compressed = |_| Compressed { seq, now, took, method, content_len: len, payload_len };
            gauge().done(Some(method), sealed.head.codec.map(compressed).as_ref());
        }
        (sealed, took)
    }
}

fn look(session: &SendSession, content_len: usize) -> Look {
    let (carried, wire_bytes) = session.stats.carried();
    let flow = session.flow();
    Look {
        now: session.clock.now(),
        waiting: flow.waiting(),
        links: flow.links(),
        wire_bytes,
        ran_dry: flow.ran_dry(),
        begun: flow.begun(),
        carried,
        unacked: flow.unacked(),
        acked: Seq(flow.acked()),
        content_len,
    }
}
