//! Machines of Cloud Hypervisor: a stored machine comes back byte for byte, and malformed messages are refused.

use crate::cloud::*;
use crate::daemon::{Twin, folder, is_offered, library};
use rustix::fs::{FallocateFlags, fallocate};
use slat_pager::twin::is_page;
use slat_pager::*;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

const CHUNK: usize = 64 << 10;
const BOUND: Duration = Duration::from_secs(30);

/// Runs a pager that receives a machine, in a thread of its own.
fn hearing(library: &Library) -> (Talk, JoinHandle<Result<Received, MigrationError>>) {
    let (vmm, pager) = UnixStream::pair().unwrap();
    let library = library.clone();
    (Talk::new(vmm), std::thread::spawn(move || receive_machine(&library, "vm", &pager, CHUNK, BOUND)))
}

/// Makes a store with a machine in it.
pub fn with_machine(name: &str) -> PathBuf {
    let folder = folder(name);
    let (mut vmm, pager) = hearing(&library(&folder));
    send_all(&mut vmm, &files());
    assert_eq!(vmm.ask(COMPLETE_PAUSED, &[]), OK);
    assert_eq!(pager.join().unwrap().unwrap().memory, (IMAGE.pages * PAGE) as u64);
    folder
}

type End = JoinHandle<Result<GuestStats, MigrationError>>;

/// Makes a VMM to which a machine is restored, up to its state.
fn restoring(folder: &Path, library: &Library, with: Restore) -> (Vmm, End) {
    let socket = folder.join("vmm");
    _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let template = library.open("vm").unwrap();
    let pager = std::thread::spawn(move || restore_machine(&template, &socket, &Cache::new(64 << 20), &with));
    (Vmm::meet(&listener), pager)
}

/// Options: the pager sends only requested pages.
fn on_demand() -> Restore {
    let mut with = Restore::default();
    with.replay = 0;
    with
}

/// Restores a machine on demand. Returns the number of wrong pages.
fn wrong_pages(folder: &Path, library: &Library) -> usize {
    let (mut vmm, pager) = restoring(folder, library, on_demand());
    let state = vmm.finish(|vmm| assert_eq!(vmm.ask(7, 1), OK));
    assert!(state == VM_STATE && vmm.config == config(false).as_bytes() && !vmm.paused);
    // Backwards, several at a time if they are in one memslot.
    let mut wrong = 0;
    for first in (0..IMAGE.pages / 2).rev().map(|pair| pair * 2) {
        assert_eq!(vmm.ask(first, 2), OK);
        wrong += (first..first + 2).filter(|page| vmm.read(*page) != content(*page)).count();
    }
    drop(vmm);
    let stats = pager.join().unwrap().unwrap();
    assert_eq!((stats.settled, stats.ahead), (IMAGE.pages as u64, 0));
    wrong
}

#[test]
fn a_machine_of_several_memslots_comes_back_byte_for_byte() {
    let folder = with_machine("machine");
    assert_eq!(library(&folder).verify("vm").unwrap().damaged, [""; 0]);
    assert_eq!(wrong_pages(&folder, &library(&folder)), 0);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn only_pages_that_were_asked_for_are_there() {
    let folder = with_machine("machine-lazy");
    let (mut vmm, pager) = restoring(&folder, &library(&folder), on_demand());
    vmm.finish(|_| {});
    let page = (0..IMAGE.pages).rev().find(|page| !IMAGE.is_zero(*page)).unwrap();
    assert_eq!(vmm.ask(page, 1), OK);
    let there = (0..IMAGE.pages).filter(|page| vmm.read(*page).iter().any(|byte| *byte != 0));
    assert_eq!(there.collect::<Vec<_>>(), [page]);
    drop(vmm);
    assert_eq!(pager.join().unwrap().unwrap().filled, 1);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Returns whether a page that the guest wrote stays after a second request, and whether one that it gave back is zero.
fn stay(folder: &Path, library: &Library) -> bool {
    let (mut vmm, pager) = restoring(folder, library, on_demand());
    vmm.finish(|_| {});
    let written = (0..IMAGE.pages).find(|page| !IMAGE.is_zero(*page)).unwrap();
    let gone = (written + 1..IMAGE.pages).find(|page| !IMAGE.is_zero(*page)).unwrap();
    for page in [written, gone] {
        assert_eq!(vmm.ask(page, 1), OK);
    }
    let (file, place) = vmm.file(written);
    file.write_all_at(&[0xEE; PAGE], place).unwrap();
    let (file, place) = vmm.file(gone);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let full = file.metadata().unwrap().blocks();
    fallocate(file, punch, place, PAGE as u64).unwrap();
    let punched = file.metadata().unwrap().blocks();
    for page in [written, gone] {
        assert_eq!(vmm.ask(page, 1), OK);
    }
    // The page is present, because the VMM is about to map it. No part of a huge page was removed.
    let (file, _) = vmm.file(gone);
    assert_eq!(file.metadata().unwrap().blocks(), full, "{punched} blocks without it");
    let stay = vmm.read(written) == [0xEE; PAGE] && vmm.read(gone) == [0; PAGE];
    drop(vmm);
    pager.join().unwrap().unwrap();
    stay
}

#[test]
fn written_pages_stay_and_pages_given_back_are_zero() {
    let folder = with_machine("machine-stay");
    assert!(stay(&folder, &library(&folder)));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_page_is_filled_ahead_of_faults_from_a_failing_store() {
    let folder = with_machine("machine-ahead");
    let store = Trouble::new(Folder::open(folder.join("store")).unwrap(), Duration::from_millis(1), 20);
    let (mut vmm, pager) =
        restoring(&folder, &Library::new(Steady::new(store, SteadyOptions::default())), Restore::default());
    vmm.finish(|_| {});
    // Pages filled ahead are not filled again.
    for page in (0..IMAGE.pages).rev() {
        assert_eq!(vmm.ask(page, 1), OK);
        assert_eq!(vmm.read(page), content(page), "page {page}");
    }
    drop(vmm);
    let stats = pager.join().unwrap().unwrap();
    let pages = (0..IMAGE.pages).filter(|page| !IMAGE.is_zero(*page)).count() as u64;
    assert_eq!((stats.settled, stats.filled), (IMAGE.pages as u64, pages));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_record_has_the_pages_that_the_guest_touched_and_not_those_of_the_vmms_own_pass() {
    let folder = with_machine("machine-record");
    let mut with = Restore::default();
    (with.record, with.paused) = (Some(Duration::from_secs(3600)), true);
    let (mut vmm, pager) = restoring(&folder, &library(&folder), with);
    vmm.finish(|_| {});
    assert!(vmm.paused);
    // Two touched pages lie in the range of the pass.
    for page in [0, 1, 200, 2, 5, 3, 4, 200, 6, 7, 300, 8] {
        assert_eq!(vmm.ask(page, 1), OK);
    }
    drop(vmm);
    assert_eq!(pager.join().unwrap().unwrap().recorded, 3);
    let set = library(&folder).open("vm").unwrap().working_set().unwrap();
    assert_eq!(set.runs().collect::<Vec<_>>(), [200..201, 5..6, 300..301]);
    // The next guest gets these pages first, and then all others.
    let (mut vmm, pager) = restoring(&folder, &library(&folder), Restore::default());
    vmm.finish(|_| {});
    assert_eq!(vmm.ask(5, 1), OK);
    assert_eq!(vmm.read(5), content(5));
    drop(vmm);
    assert_eq!(pager.join().unwrap().unwrap().recorded, 0);
    std::fs::remove_dir_all(folder).unwrap();
}

/// The store refuses the template.
#[test]
fn a_migration_is_complete_when_its_template_is_stored_and_not_before() {
    let folder = folder("machine-full");
    let library = library(&folder);
    let (mut vmm, pager) = hearing(&library);
    send_all(&mut vmm, &files());
    // No file can be made there.
    std::fs::write(folder.join("store/manifests"), "").unwrap();
    vmm.request(COMPLETE, 0, &[]);
    assert_eq!(vmm.answer(), ERROR, "the VMM keeps its guest");
    assert!(pager.join().unwrap().is_err());
    assert_eq!(library.list().unwrap(), [""; 0]);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Sends a malformed machine, and returns the pager's error. Checks that the last answer is a refusal, and that there
/// is no template.
fn refused(send: impl FnOnce(&mut Talk, &[File; 2]) -> (u16, u64)) -> String {
    let folder = folder("machine-refused");
    let library = library(&folder);
    let (mut vmm, pager) = hearing(&library);
    let answer = send(&mut vmm, &files());
    let error = pager.join().unwrap().unwrap_err();
    assert_eq!(answer, if matches!(error, MigrationError::Abandoned) { OK } else { ERROR }, "{error}");
    assert!(library.list().unwrap().is_empty());
    std::fs::remove_dir_all(folder).unwrap();
    assert!(!error.to_string().contains('\n'));
    error.to_string()
}

#[test]
fn invalid_messages_of_a_vmm_are_refused() {
    let said = |what: &str, send: fn(&mut Talk, &[File; 2]) -> (u16, u64)| {
        let error = refused(send);
        assert!(error.contains(what), "{error}");
    };
    said("Config(1) came when Start", |vmm, _| vmm.ask(CONFIG, &[0]));
    said("MemoryFd came when Start", |vmm, files| vmm.ask_fd(1, &[&files[0]]));
    said("command 77", |vmm, _| vmm.ask(77, &[]));
    said("local=on", |vmm, _| {
        assert_eq!(vmm.ask(START, &[]), OK);
        vmm.ask(4, &[0; 16])
    });
    said("abandoned", |vmm, _| {
        assert_eq!(vmm.ask(START, &[]), OK);
        vmm.ask(6, &[])
    });
    said("no descriptor", |vmm, _| {
        assert_eq!(vmm.ask(START, &[]), OK);
        vmm.ask_fd(2, &[])
    });
    said("several descriptors", |vmm, files| {
        assert_eq!(vmm.ask(START, &[]), OK);
        vmm.ask_fd(2, &[&files[0], &files[1]])
    });
    said("it may have 1 to 16777216", |vmm, _| {
        assert_eq!(vmm.ask(START, &[]), OK);
        vmm.request(CONFIG, 1 << 40, &[]);
        vmm.answer()
    });
    said("State(1) came when Config", |vmm, _| {
        assert_eq!(vmm.ask(START, &[]), OK);
        vmm.ask(STATE, &[1])
    });
    // Memslots, with the file of each. The last file is not memory.
    let all = [(2, 0), (4, 1), (9, 1)];
    let of_config = |what: &str, virtio_mem: bool, sent: &[(u32, usize)]| {
        let error = refused(|vmm, [one, other]| {
            let null = File::open("/dev/null").unwrap();
            assert_eq!(vmm.ask(START, &[]), OK);
            for (slot, file) in sent {
                assert_eq!(vmm.ask_fd(*slot, &[[one, other, &null][*file]]), OK);
            }
            vmm.ask(CONFIG, config(virtio_mem).as_bytes())
        });
        assert!(error.contains(what), "{error}");
    };
    of_config("memslot 2: virtio-mem", true, &all);
    of_config("memslot 2: its memory did not come", false, &[]);
    of_config("memslot 2: its memory is no file", false, &[(2, 2)]);
    of_config("memslot 9: its memory is no file that is long", false, &[(2, 0), (4, 1), (9, 0)]);
    of_config("memslot 2: it is none", false, &[all[0], all[1], all[2], all[0]]);
    of_config("memslot 5: it is none", false, &[all[0], all[1], all[2], (5, 1)]);
    said("Complete { paused: false } came when State", |vmm, files| {
        assert_eq!(vmm.ask(START, &[]), OK);
        for (slot, _, _, file, _) in SLOTS {
            assert_eq!(vmm.ask_fd(slot, &[&files[file]]), OK);
        }
        assert_eq!(vmm.ask(CONFIG, config(false).as_bytes()), OK);
        vmm.ask(COMPLETE, &[])
    });
    // Memory that ends early when it is read.
    said("end of file", |vmm, files| {
        send_all(vmm, files);
        files[1].set_len(PAGE as u64).unwrap();
        vmm.ask(COMPLETE, &[])
    });
}

#[test]
fn a_vmm_that_takes_too_long_is_not_waited_for() {
    let (folder, (vmm, pager)) = (folder("machine-late"), UnixStream::pair().unwrap());
    let mut vmm = Talk::new(vmm);
    vmm.request(START, 0, &[]);
    let late = Duration::from_millis(100);
    let error = receive_machine(&library(&folder), "vm", &pager, CHUNK, late).unwrap_err();
    assert!(error.to_string().contains("it took too long"), "{error}");
    assert_eq!((vmm.answer(), vmm.answer()), (OK, ERROR));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn invalid_requests_of_a_vmm_are_refused() {
    let folder = with_machine("machine-asks");
    let refused = |what: &str, command, payload: &[u64]| {
        let (mut vmm, pager) = restoring(&folder, &library(&folder), on_demand());
        let payload: Vec<u8> = payload.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(vmm.faults.ask(command, &payload), ERROR);
        // The VMM gets no more pages.
        assert_eq!(vmm.ask(0, 1), (0, 0));
        vmm.refuse();
        let error = pager.join().unwrap().unwrap_err().to_string();
        assert!(error.contains(what) && !error.contains('\n'), "{error}");
    };
    let page = PAGE as u64;
    refused("whole pages", PAGE_FAULT, &[1, page]);
    refused("whole pages", PAGE_FAULT, &[0, 0]);
    refused("2097152 bytes at most", PAGE_FAULT, &[0, 4 << 20]);
    refused("not in one memslot", PAGE_FAULT, &[1 << 40, page]);
    refused("not in one memslot", PAGE_FAULT, &[95 * page, 2 * page]);
    refused("it may have 16 to 16", PAGE_FAULT, &[0]);
    refused("Start came when PageFault", START, &[]);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_vmm_that_refuses_ends_the_restore_and_a_template_of_memory_alone_begins_none() {
    let folder = with_machine("machine-ends");
    let (mut vmm, pager) = restoring(&folder, &library(&folder), on_demand());
    vmm.refuse();
    assert_eq!(pager.join().unwrap().unwrap_err().to_string(), "the VMM refused State");
    // A template of memory only is not a machine.
    let library = library(&folder);
    library.snapshot("memory", &*vec![1; PAGE], PAGE as u64, PAGE).unwrap();
    let error =
        restore_machine(&library.open("memory").unwrap(), &folder.join("vmm"), &Cache::new(0), &on_demand());
    assert!(matches!(error, Err(MigrationError::NoMachine(name)) if name == "memory"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_page_waits_for_a_store_that_is_down_until_its_vmm_hangs_up() {
    let folder = with_machine("machine-down");
    let (calls, is_down) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, down) = (calls.clone(), is_down.clone());
    let store = Trouble::calling(Folder::open(folder.join("store")).unwrap(), move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        if down.load(Ordering::SeqCst) { Err(std::io::Error::other("on purpose")) } else { Ok(()) }
    });
    let (mut vmm, pager) = restoring(&folder, &Library::new(store), on_demand());
    vmm.finish(|_| {});
    let asked_twice = || {
        let before = calls.load(Ordering::SeqCst);
        let is_asked = |_| {
            std::thread::sleep(Duration::from_millis(5));
            calls.load(Ordering::SeqCst) > before + 1
        };
        assert!((0..6000).any(is_asked), "the store is not asked again");
    };
    is_down.store(true, Ordering::SeqCst);
    let page = (0..IMAGE.pages).find(|page| !IMAGE.is_zero(*page)).unwrap();
    let fault = [gpa(page), PAGE as u64].map(u64::to_le_bytes).concat();
    vmm.faults.request(PAGE_FAULT, 16, &fault);
    asked_twice();
    is_down.store(false, Ordering::SeqCst);
    assert_eq!(vmm.faults.answer(), OK);
    assert_eq!(vmm.read(page), content(page));
    // Another chunk.
    is_down.store(true, Ordering::SeqCst);
    let page = (page + 16..IMAGE.pages).find(|page| !IMAGE.is_zero(*page)).unwrap();
    vmm.faults.request(PAGE_FAULT, 16, &[gpa(page), PAGE as u64].map(u64::to_le_bytes).concat());
    asked_twice();
    drop(vmm);
    let error = pager.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("on purpose"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_guest_on_userfaultfd_sees_every_byte_right() {
    if !is_offered() {
        return;
    }
    let folder = folder("machine-uffd");
    let pager = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
        command.args(words).arg("--store").arg(folder.join("store"));
        Twin(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    };
    let socket = folder.join("receive");
    let receiving = pager(&["receive", socket.to_str().unwrap(), "vm", "--chunk", "16K"]);
    let mut vmm = Talk::connect(&socket);
    send_all(&mut vmm, &files());
    assert_eq!(vmm.ask(COMPLETE, &[]), OK);
    let (status, output) = receiving.end();
    assert!(status.success() && output.starts_with("vm: a machine of 1 MiB") && !socket.exists(), "{output}");
    let listener = UnixListener::bind(folder.join("vmm")).unwrap();
    let guest = format!("{}=vm", folder.join("vmm").display());
    let restoring = pager(&["restore", "--guest", &guest, "--replay", "2"]);
    let mut vmm = Vmm::meet(&listener);
    assert_eq!(vmm.finish(|_| {}), VM_STATE);
    let mapped = vmm.run();
    let (send, looked) = channel();
    // A guest that stands still does not come back.
    std::thread::spawn(move || {
        let wrong = (0..IMAGE.pages).map(|page| page * 37 % IMAGE.pages);
        let wrong = wrong.filter(|page| !is_page(&IMAGE, *page, Some(0), &mapped.read(*page)));
        let wrong = wrong.collect::<Vec<_>>();
        _ = send.send((wrong, mapped));
    });
    // Its VMM maps all pages before it ends.
    let (wrong, _mapped) = looked.recv_timeout(BOUND).expect("the guest stands still");
    assert_eq!(wrong, [0; 0]);
    assert!(restoring.end().0.success());
    std::fs::remove_dir_all(folder).unwrap();
}
