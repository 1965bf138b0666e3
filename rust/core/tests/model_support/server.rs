//! A Redis on a port of its own, ended with the test, however that ends. `scripts/servers.py` gets the programs.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The same as the Python tests use.
const OPTIONS: [&str; 10] =
    ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--hz", "100", "--loglevel", "warning"];
/// Ends the server when this process's end of the pipe is closed, be it by a crash.
const LEASH: &str = r#""$@" >/dev/null 2>&1 & read -r _; kill $!; wait $!"#;

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where it listens, on 127.0.0.1.
    pub(crate) port: u16,
    leash: Child,
    folder: PathBuf,
}

fn binary(build: &str) -> PathBuf {
    let home = || std::env::var_os("HOME").map_or_else(|| "/root".into(), PathBuf::from).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty()).map_or_else(home, PathBuf::from);
    let binary = cache.join("ruststream/servers").join(build).join("bin/redis-server");
    assert!(binary.is_file(), "{} is missing; run `make servers`", binary.display());
    binary
}

impl Server {
    /// Start one by the name of its folder, and wait until it answers.
    pub(crate) fn start(build: &str) -> Self {
        let binary = binary(build);
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            let Ok(port) = port.map(|address| address.port()) else { panic!("no free port on 127.0.0.1") };
            let folder = std::env::temp_dir().join(format!("ruststream-model-{}-{port}", std::process::id()));
            assert!(std::fs::create_dir_all(&folder).is_ok(), "cannot make {}", folder.display());
            let mut command = Command::new("sh");
            command.args(["-c", LEASH, "sh"]).arg(&binary).args(["--port", &port.to_string()]);
            command.arg("--dir").arg(&folder).args(OPTIONS).stdin(Stdio::piped());
            let Ok(leash) = command.spawn() else { panic!("cannot start sh to run {}", binary.display()) };
            let server = Self { port, leash, folder };
            if server.answers() {
                return server;
            }
        }
        panic!("{} does not start", binary.display());
    }

    fn answers(&self) -> bool {
        let patience = Instant::now() + Duration::from_secs(10);
        while Instant::now() < patience {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.leash.stdin.take());
        let _ = self.leash.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
