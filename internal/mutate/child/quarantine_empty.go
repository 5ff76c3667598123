package child

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// openOwnEntry opens the quarantine and checks that an entry is the inspected one.
func openOwnEntry(r Request) (dir int, err error) {
	if !IsLocal(r.Kept.Name) || strings.ContainsRune(r.Kept.Name, '/') || strings.HasPrefix(r.Kept.Name, ".") {
		return -1, Refuse("%q is not an entry of the quarantine", r.Kept.Name)
	}
	dir, err = openQuarantine(r.Quarantine)
	if err != nil {
		return -1, err
	}
	kept, err := readRecord(dir, r.Kept.Name)
	if errors.Is(err, ErrGone) {
		err = Changed("quarantine %s has no record", r.Kept.Name)
	}
	if err == nil && (kept.Name != r.Kept.Name || kept.File != r.Kept.File ||
		kept.Moved.Boot != r.Kept.Moved.Boot || kept.Moved.SinceBoot != r.Kept.Moved.SinceBoot) {
		err = Changed("quarantine %s", r.Kept.Name)
	}
	if err != nil {
		unix.Close(dir)
		return -1, err
	}
	return dir, nil
}

func noteAge(r Request) error {
	dir, err := openOwnEntry(r)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	record := recordOf(r.Kept.Name)
	next := strings.TrimSuffix(record, ".json") + recordNew // a leftover of a crash is not an entry, and is rewritten
	if err := unix.Unlinkat(dir, next, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("record %s: %w", next, err)
	}
	if err := writeRecord(dir, r.Kept, next); err != nil {
		return err
	}
	if err := unix.Renameat(dir, next, dir, record); err != nil {
		return fmt.Errorf("record %s: %w", record, err)
	}
	return unix.Fsync(dir)
}

// empty removes an entry: it first lists all of it, and then removes it name by name, each only if it is still as
// listed. A file that appears meanwhile keeps its directory.
func empty(r Request) error {
	dir, err := openOwnEntry(r)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	entries, err := keptTree(dir, r.Kept)
	if err != nil {
		return err
	}
	for _, entry := range slices.Backward(entries) {
		if err := removeKept(dir, r.Kept.Name, entry); err != nil && !errors.Is(err, ErrGone) {
			return err
		}
	}
	if err := unix.Unlinkat(dir, recordOf(r.Kept.Name), 0); err != nil {
		return fmt.Errorf("record of %s: %w", r.Kept.Name, err)
	}
	return unix.Fsync(dir)
}

// keptTree lists all of an entry, which may contain no mount.
func keptTree(dir int, kept Kept) ([]Entry, error) {
	top, err := entryAt(dir, kept.Name, "")
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if top.File != kept.File {
		return nil, Changed("quarantine %s", kept.Name)
	}
	return wholeTree(dir, kept.Name, top)
}

// removeKept removes one name below an entry of the quarantine.
func removeKept(quarantine int, name string, entry Entry) error {
	above, last := path.Split(path.Join(name, entry.Path))
	dir, err := OpenBelow(quarantine, path.Join(".", above), unix.O_PATH|unix.O_DIRECTORY, resolveInside)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	now, err := entryAt(dir, last, entry.Path)
	if err != nil {
		return err
	}
	if now.Type != entry.Type || now.File != entry.File || now.Mount {
		return Changed("quarantine %s", path.Join(name, entry.Path))
	}
	flags := 0
	if entry.Type == Directory {
		flags = unix.AT_REMOVEDIR
	}
	return Gone(path.Join(name, entry.Path), unix.Unlinkat(dir, last, flags))
}
