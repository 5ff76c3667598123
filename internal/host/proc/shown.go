package proc

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host/files"
)

// exiting is PF_EXITING of include/linux/sched.h: do_exit has begun.
const exiting = 0x00000004

// Exiting reports whether a thread is exiting or has ended: it may have left its files, its namespaces and, in cgroup
// v1, its cgroups, although it may still be in state R or D.
func Exiting(thread Stat) bool {
	return thread.Flags&exiting != 0 || thread.State == 'Z' || thread.State == 'X' || thread.State == 'x'
}

// Left reports whether an error of reading a file in /proc means that the thread is gone, or has left its files or
// namespaces: mountinfo then gives EINVAL, most links ENOENT. It does not return to them.
func Left(err error) bool { return Gone(err) || errors.Is(err, syscall.EINVAL) }

// maxListings bounds how often the threads of a process are listed for one question.
const maxListings = 16

// Shown calls read with an ID below which /proc shows a process, and returns its error: the process's own or, if its
// main thread has left its files and namespaces (Left) while others run on, that of each other thread until one has
// not left. Left is true for the error only if no thread of the process is left that could be asked. read may be called
// several times, and must not keep anything of a call that it answers with such an error.
func Shown(tree files.Tree, pid int, read func(id int) error) error {
	first := read(pid)
	if !Left(first) {
		return first
	}
	stat, err := Read(tree, File(pid, "stat"))
	switch {
	case Gone(err):
		return first
	case err != nil:
		return fmt.Errorf("whether process %d has ended: %w", pid, err)
	case !Exiting(stat) || stat.Threads <= 1 || !Alive(stat):
		return first
	}
	asked := map[int]bool{pid: true}
	for range maxListings {
		threads, err := (&Scan{Root: tree.Root}).IDs(File(pid, "task"))
		if Gone(err) {
			return first
		}
		if err != nil {
			return fmt.Errorf("threads of process %d: %w", pid, err)
		}
		started := false // a thread since the last listing: after it has left, a thread starts none
		for _, id := range threads {
			if asked[id] {
				continue
			}
			asked[id], started = true, true
			if err := read(id); !Left(err) {
				return err
			}
		}
		if !started {
			return first
		}
	}
	return fmt.Errorf("process %d: its threads end faster than they can be read", pid)
}

// Namespace returns a namespace of a process, such as "mnt:[4026531841]" for the kind "mnt", and an ID below which /proc
// shows it: see Shown. With an error, that is the process's own.
func Namespace(tree files.Tree, pid int, kind string) (name string, id int, err error) {
	err = Shown(tree, pid, func(shown int) (err error) {
		id = shown
		name, err = tree.Link(File(shown, "ns/"+kind))
		return err
	})
	if err != nil {
		return "", pid, err
	}
	return name, id, nil
}
