package mountinfo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	besideFree = 300 * time.Millisecond // of a processor, for the mounts beside a stack
	lowStack   = 256                    // mounts, of which none costs much
	inStack    = 1024                   // mounts up the stack, from which it is listed
	atOnce     = 512                    // mounts to list
)

// beside has the mounts outside the stack of a table that costs too much.
//
// If listmount(2) lists the mounts below one within the stack, it walks only up to that one: in steps of 512 mounts it
// lists a stack of 32,768 in 0.06 s of a processor; the mount table takes 17 s. The IDs of the other mounts lie between
// and behind those of the stack: statmount(2) needs 0.4 microseconds to find that an ID does not exist. Since Linux 6.8
// the mount table and listmount have the same order, that of the IDs.
type beside struct {
	file   *File // for its count of changes
	mounts []Mount
	total  int // of mounts in the table, with the stack
}

func (b *beside) close() error {
	if b == nil {
		return nil
	}
	return b.file.Close()
}

// readBeside returns the mounts of the table outside its stack; read are its first lines.
func (r *Reader) readBeside(name string, read []Mount) (*beside, error) {
	runtime.LockOSThread() // namespace and clock are the thread's
	defer runtime.UnlockOSThread()
	if err := ownTable(name); err != nil {
		return nil, err
	}
	file, err := Open(name)
	if err != nil {
		return nil, err
	}
	l := &lister{clock: r.Cost, buffer: make([]byte, maxMountLen)}
	if l.clock == nil {
		l.clock = threadTime
	}
	l.began = l.clock()
	b := &beside{file: file}
	b.mounts, b.total, err = l.beside(read)
	r.budget.spend(l.clock() - l.began)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return b, nil
}

// ownTable returns an error unless the table of this name is that of this thread's own namespace and root.
func ownTable(name string) error {
	for _, part := range []string{"ns/mnt", "root"} {
		own, err := os.Stat("/proc/thread-self/" + part)
		if err != nil {
			return err
		}
		other, err := os.Stat(filepath.Join(strings.TrimSuffix(name, "mountinfo"), part))
		if err != nil || !os.SameFile(own, other) {
			return fmt.Errorf("%s is of another mount namespace: %w", name, errors.ErrUnsupported)
		}
	}
	return nil
}

// lister lists the mounts beside a stack, as long as it may.
type lister struct {
	clock  func() time.Duration
	began  time.Duration
	buffer []byte // of statmount
}

// beside returns the mounts outside the stack, those on top of it and its top, and the number of all mounts.
func (l *lister) beside(read []Mount) (found []Mount, total int, err error) {
	most := HighestStack(read)
	if most.Mounts < lowStack {
		return nil, 0, errNoStack
	}
	point := most.Point
	start, err := l.first(indexInStack(read, point) + 1)
	if err != nil {
		return nil, 0, err
	}
	base := start[len(start)-1]
	stack, err := l.below(base)
	if err != nil || len(stack) == 0 {
		return nil, 0, errors.Join(err, errNoStack)
	}
	others, err := l.between(base, stack)
	if err != nil {
		return nil, 0, err
	}
	total = len(start) + len(stack) + len(others)
	for _, id := range others {
		if found, err = l.add(found, id); err != nil {
			return nil, 0, err
		}
	}
	for _, id := range slices.Backward(stack) { // down to the top of the stack: the others are mounted on it
		if found, err = l.add(found, id); err != nil {
			return nil, 0, err
		}
		if len(found) > 0 && found[len(found)-1].Point == point {
			break
		}
	}
	return found, total, nil
}

var errNoStack = errors.New("no stack was found")

// indexInStack is the index of a mount on point with enough others below it.
func indexInStack(read []Mount, point string) int {
	last, n := len(read)-1, 0
	for i, m := range read {
		if m.Point == point {
			last, n = i, n+1
		}
		if n == inStack {
			break
		}
	}
	return last
}

// first lists the first n mounts.
func (l *lister) first(n int) ([]uint64, error) {
	ids, err := l.list(wholeTree, 0, make([]uint64, n))
	if err == nil && len(ids) < n {
		err = errNoStack
	}
	return ids, err
}

// below lists all mounts below one, from there, and then from the last ones.
func (l *lister) below(base uint64) (stack []uint64, err error) {
	from, before, last := base, base, base
	for {
		ids, err := l.list(from, last, make([]uint64, atOnce))
		switch {
		case err != nil:
			return nil, err
		case len(ids) > 0:
			stack = append(stack, ids...)
			last = ids[len(ids)-1]
			before, from = from, last
		case from == before:
			return stack, nil
		default: // no mount is above the last one, but others may be above the one before
			from = before
		}
	}
}

// between returns the mounts with an ID behind base outside the stack.
func (l *lister) between(base uint64, stack []uint64) (others []uint64, err error) {
	last := base
	for _, id := range stack {
		for last++; last < id; last++ {
			err := statMount(last, mountBasic, l.buffer)
			switch {
			case err == nil:
				others = append(others, last)
			case !errors.Is(err, unix.ENOENT):
				return nil, err
			}
			if last%64 == 0 {
				if err := l.tooLong(); err != nil {
					return nil, err
				}
			}
		}
	}
	for {
		ids, err := l.list(wholeTree, last, make([]uint64, atOnce))
		if err != nil || len(ids) == 0 {
			return others, err
		}
		others = append(others, ids...)
		last = ids[len(ids)-1]
	}
}

func (l *lister) list(below, behind uint64, ids []uint64) ([]uint64, error) {
	if err := l.tooLong(); err != nil {
		return nil, err
	}
	n, err := listMounts(below, behind, ids)
	return ids[:n], err
}

// add appends a mount, unless it has gone meanwhile.
func (l *lister) add(found []Mount, id uint64) ([]Mount, error) {
	if err := l.tooLong(); err != nil {
		return found, err
	}
	m, err := readMount(id, l.buffer)
	if errors.Is(err, unix.ENOENT) {
		return found, nil
	}
	return append(found, m), err
}

func (l *lister) tooLong() error {
	if l.clock()-l.began > besideFree {
		return &CutError{}
	}
	return nil
}
