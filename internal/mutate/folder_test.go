package mutate_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// Only plain files with one name are listed. Only listed files that were not changed since are removed.
func TestFolder(t *testing.T) {
	n := mutatetest.New(t)
	dir := n.Mkdir(filepath.Join(n.Dir, "coredump"))
	log := n.Write(filepath.Join(n.Dir, "kubelet/pods/0.log"), "a living pod's")
	for _, name := range []string{"core.a", "core.b", "core.mounted", "core.replaced", "core.touched"} {
		n.Write(filepath.Join(dir, name), strings.Repeat("x", 5000))
	}
	n.Mkdir(filepath.Join(dir, "core.directory"))
	n.Mount(log, filepath.Join(dir, "core.mounted"), "", unix.MS_BIND)
	for _, err := range []error{os.Symlink(log, filepath.Join(dir, "core.link")),
		os.Link(log, filepath.Join(dir, "core.hard")), unix.Mkfifo(filepath.Join(dir, "core.pipe"), 0o600),
		os.Symlink(dir, filepath.Join(n.Dir, "link"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	folder, files, err := n.Mutator.ListFolder(ctx, dir)
	var names []string
	byName := map[string]mutate.FolderFile{}
	for _, f := range files {
		names, byName[f.Name] = append(names, f.Name), f
	}
	if want := []string{"core.a", "core.b", "core.replaced", "core.touched"}; err != nil || !slices.Equal(names, want) {
		t.Fatalf("%q, %v; want %q", names, err, want)
	}
	if f := byName["core.a"]; f.Bytes != 8192 || time.Since(f.Modified).Abs() > time.Hour {
		t.Errorf("%+v", f)
	}

	// Another file takes a name after it was listed.
	n.Write(filepath.Join(dir, "core.new"), "new")
	if err := os.Rename(filepath.Join(dir, "core.new"), filepath.Join(dir, "core.replaced")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(dir, "core.touched"), time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "core.b"), filepath.Join(n.Dir, "b")); err != nil {
		t.Fatal(err)
	}
	link := byName["core.a"]
	link.Name, link.File = "core.link", mutatetest.FileID(t, log)
	for name, file := range map[string]mutate.FolderFile{"replaced": byName["core.replaced"], "touched": byName["core.touched"],
		"linked again": byName["core.b"], "link": link} {
		if err := n.Mutator.RemoveFrom(ctx, folder, file); !errors.Is(err, mutate.ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	outside := byName["core.a"]
	outside.Name = "../kubelet/pods/0.log"
	if _, refused := errors.AsType[mutate.Refusal](n.Mutator.RemoveFrom(ctx, folder, outside)); !refused {
		t.Error("a name outside is not refused")
	}
	other := folder
	other.File.Inode++
	if err := n.Mutator.RemoveFrom(ctx, other, byName["core.a"]); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("another folder: %v", err)
	}
	for range 2 { // the second time it is gone
		if err := n.Mutator.RemoveFrom(ctx, folder, byName["core.a"]); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(dir)
	if text, _ := os.ReadFile(log); err != nil || len(left) != 8 || string(text) != "a living pod's" {
		t.Errorf("%v, %v, %q", left, err, text)
	}

	if _, _, err := n.Mutator.ListFolder(ctx, filepath.Join(n.Dir, "link")); err == nil {
		t.Error("a link is taken for the folder")
	}
	if _, files, err := n.Mutator.ListFolder(ctx, filepath.Join(n.Dir, "none")); err != nil || len(files) > 0 {
		t.Errorf("no folder: %v, %v", files, err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.Mutator.ListFolder(ctx, dir); !errors.As(err, new(mutate.Refusal)) {
		t.Errorf("a folder that anybody can write in: %v", err)
	}
}

// The vacuum removes archived files, the oldest first, until the rest is small enough, and no other files.
func TestVacuumJournal(t *testing.T) {
	n := mutatetest.New(t)
	dir := filepath.Join(n.Dir, "journal")
	mutatetest.Journal(t, dir)
	n.Write(filepath.Join(dir, "note"), "not a journal")
	ctx := t.Context()
	folder, files, err := n.Mutator.ListFolder(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	active := uint64(0)
	for _, f := range files {
		if f.Name == "system.journal" {
			active = f.Bytes
		}
	}
	archived := slices.DeleteFunc(files, func(f mutate.FolderFile) bool { return !strings.Contains(f.Name, "@") })
	if len(archived) != 3 {
		t.Fatalf("%+v", files)
	}
	for name, bad := range map[string]struct {
		folder mutate.Folder
		keep   uint64
	}{"no floor": {folder, 0}, "not listed": {mutate.Folder{Path: dir}, 1}, "another": {mutate.Folder{Path: dir,
		File: mutate.FileID{Device: "1:1", Inode: 1}}, 1}} {
		if err := n.Mutator.VacuumJournal(ctx, bad.folder, bad.keep); err == nil {
			t.Errorf("%s: vacuumed", name)
		}
	}
	if err := n.Mutator.VacuumJournal(ctx, folder, active+archived[2].Bytes+archived[1].Bytes/2); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	for _, name := range []string{"note", "system.journal", archived[2].Name} {
		if !slices.Contains(left, name) {
			t.Errorf("%s is gone; left: %q of %+v", name, left, archived)
		}
	}
	if slices.Contains(left, archived[0].Name) {
		t.Errorf("the oldest is left: %q of %+v", left, archived)
	}
}
