package mutate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

const plenty = 1 << 30

// kept moves a directory with every kind of file that a pod can make to quarantine and returns its entry.
func kept(t *testing.T, n *mutatetest.Node) mutate.Kept {
	t.Helper()
	uid := mutatetest.UID(t)
	dir := n.PodDir(uid, "volumes/kubernetes.io~empty-dir/v")
	n.Write(filepath.Join(dir, "a/b/file"), "data")
	for name, mode := range map[string]uint32{"pipe": unix.S_IFIFO, "socket": unix.S_IFSOCK, "device": unix.S_IFCHR} {
		if err := unix.Mknod(filepath.Join(dir, name), mode|0o600, int(unix.Mkdev(1, 5))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := n.Mutator.Quarantine(t.Context(), uid, "volumes/kubernetes.io~empty-dir/v", mutatetest.FileID(t, dir),
		plenty); err != nil {
		t.Fatal(err)
	}
	for _, k := range list(t, n) {
		if k.UID == uid {
			return k
		}
	}
	t.Fatal("not in quarantine")
	return mutate.Kept{}
}

func list(t *testing.T, n *mutatetest.Node) []mutate.Kept {
	t.Helper()
	all, err := n.Mutator.Quarantined(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestQuarantineIsBounded(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	file := n.Write(n.PodDir(uid, "v/file"), strings.Repeat("x", 1000))
	hole := n.Write(n.PodDir(uid, "v/hole"), "")
	if err := os.Truncate(hole, 1<<42); err != nil {
		t.Fatal(err)
	}
	move := func(name string, limit uint64) error {
		return n.Mutator.Quarantine(t.Context(), uid, name, mutatetest.FileID(t, n.PodDir(uid, name)), limit)
	}
	for name, limit := range map[string]uint64{"v/file": 999, "v/hole": 1<<42 - 1, "v": 1 << 42} {
		var refusal mutate.Refusal
		if err := move(name, limit); !errors.As(err, &refusal) ||
			!strings.Contains(refusal.Why, "quarantine is full: it holds 0 bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := move("v/file", 1000); err != nil {
		t.Fatal(err)
	}
	n.Write(file, "y")
	if err := move("v/file", 1000); err == nil ||
		!strings.Contains(err.Error(), "it holds 1000 bytes, this has 1, and 1000 are allowed") {
		t.Errorf("one byte more: %v", err)
	}
	if err := move("v/file", 1001); err != nil {
		t.Error(err)
	}
}

func TestQuarantineFull(t *testing.T) {
	for name, test := range map[string]struct {
		all         []mutate.Kept
		need, limit uint64
		full        bool
	}{
		"fits":                     {[]mutate.Kept{{Bytes: 1}, {Bytes: 2}}, 3, 6, false},
		"does not fit":             {[]mutate.Kept{{Bytes: 1}, {Bytes: 2}}, 4, 6, true},
		"overflow":                 {[]mutate.Kept{{Bytes: math.MaxUint64}}, 2, 6, true},
		"overflow of what is kept": {[]mutate.Kept{{Bytes: math.MaxUint64}, {Bytes: 2}}, 0, 6, true},
		"many":                     {make([]mutate.Kept, 10_000), 0, 6, true},
		"no limit set":             {nil, 1, 0, true},
	} {
		if why := mutate.QuarantineFull(test.all, test.need, test.limit); (why != "") != test.full {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// A mount in a moved directory would move with it, out of reach of the pod's release.
func TestQuarantineWithMount(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	m := n.Mount("tmpfs", n.PodDir(uid, "v/a/mount"), "tmpfs", 0)
	err := n.Mutator.Quarantine(t.Context(), uid, "v", mutatetest.FileID(t, n.PodDir(uid, "v")), plenty)
	if !errors.Is(err, mutate.ErrBusy) || len(n.Mounts(m.Point)) != 1 {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(n.Mutator.QuarantineDir()); err == nil && len(list(t, n)) > 0 {
		t.Error("something is in quarantine")
	}
}

func TestEmptyQuarantine(t *testing.T) {
	n := mutatetest.New(t)
	one, other := kept(t, n), kept(t, n)
	if one.Bytes < 4 || one.Path != "volumes/kubernetes.io~empty-dir/v" || one.Foreign != "" || one.Moved.Boot == "" {
		t.Errorf("%+v", one)
	}
	before := mutatetest.Snapshot(t, filepath.Join(n.Mutator.QuarantineDir(), other.Name))
	etc := mutatetest.Snapshot(t, "/etc/systemd")
	one.Age, one.Reported, one.ReportedAt = 5, true, 3
	if err := n.Mutator.NoteQuarantine(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if all := list(t, n); len(all) != 2 || !(all[0].Age == 5 && all[0].Reported || all[1].Age == 5 && all[1].Reported) {
		t.Errorf("noted: %+v", all)
	}
	if err := n.Mutator.EmptyQuarantine(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if all := list(t, n); len(all) != 1 || all[0].Name != other.Name {
		t.Errorf("left: %+v", all)
	}
	if diff := cmp.Diff(before, mutatetest.Snapshot(t, filepath.Join(n.Mutator.QuarantineDir(),
		other.Name))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(etc, mutatetest.Snapshot(t, "/etc/systemd")); diff != "" {
		t.Error(diff)
	}
	entries, err := os.ReadDir(n.Mutator.QuarantineDir())
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

// Each of these must leave the quarantine unchanged.
func TestEmptyQuarantineRefuses(t *testing.T) {
	for name, arrange := range map[string]func(t *testing.T, n *mutatetest.Node, k *mutate.Kept, at string){
		"another inode": func(_ *testing.T, _ *mutatetest.Node, k *mutate.Kept, _ string) { k.File.Inode++ },
		"another time":  func(_ *testing.T, _ *mutatetest.Node, k *mutate.Kept, _ string) { k.Moved.SinceBoot++ },
		"put in its place": func(t *testing.T, n *mutatetest.Node, _ *mutate.Kept, at string) {
			if err := errors.Join(os.Rename(at, at+".away"), os.Mkdir(at, 0o700)); err != nil {
				t.Fatal(err)
			}
			n.Write(filepath.Join(at, "precious"), "x")
		},
		"a link in its place": func(t *testing.T, n *mutatetest.Node, _ *mutate.Kept, at string) {
			if err := errors.Join(os.Rename(at, at+".away"), os.Symlink(n.Mkdir(filepath.Join(n.Dir, "outside")),
				at)); err != nil {
				t.Fatal(err)
			}
		},
		"a mount in it": func(_ *testing.T, n *mutatetest.Node, _ *mutate.Kept, at string) {
			n.Write(filepath.Join(n.Dir, "disk/canary"), "alive")
			n.Mount(filepath.Join(n.Dir, "disk"), filepath.Join(at, "a/b"), "", unix.MS_BIND)
		},
		"mounted over": func(_ *testing.T, n *mutatetest.Node, _ *mutate.Kept, at string) {
			n.Mount("tmpfs", at, "tmpfs", 0)
		},
		"mounted elsewhere": func(_ *testing.T, n *mutatetest.Node, _ *mutate.Kept, at string) {
			n.Mount(filepath.Join(at, "a"), filepath.Join(n.Dir, "living"), "", unix.MS_BIND)
		},
		"no record": func(t *testing.T, _ *mutatetest.Node, k *mutate.Kept, at string) {
			if err := os.Remove(filepath.Join(filepath.Dir(at), "."+k.Name+".json")); err != nil {
				t.Fatal(err)
			}
		},
		"somebody else's": func(_ *testing.T, _ *mutatetest.Node, k *mutate.Kept, _ string) { k.Foreign = "x" },
		"upwards":         func(_ *testing.T, _ *mutatetest.Node, k *mutate.Kept, _ string) { k.Name = "../pods" },
		"a record": func(_ *testing.T, _ *mutatetest.Node, k *mutate.Kept, _ string) {
			k.Name = "." + k.Name + ".json"
		},
		"a directory that others may write": func(t *testing.T, _ *mutatetest.Node, _ *mutate.Kept, at string) {
			if err := os.Chmod(filepath.Dir(at), 0o770); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := mutatetest.New(t)
			k := kept(t, n)
			arrange(t, n, &k, filepath.Join(n.Mutator.QuarantineDir(), k.Name))
			before := mutatetest.Snapshot(t, n.Dir)
			if err := n.Mutator.EmptyQuarantine(t.Context(), k); err == nil {
				t.Error("no error")
			}
			if diff := cmp.Diff(before, mutatetest.Snapshot(t, n.Dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Entries that the agent did not put there are reported, count, and stay.
func TestQuarantineForeign(t *testing.T) {
	n := mutatetest.New(t)
	k := kept(t, n)
	n.Write(filepath.Join(n.Mutator.QuarantineDir(), "old_vol_data.json.1"), "12345")
	n.Write(filepath.Join(n.Mutator.QuarantineDir(), ".half.json"), "{")
	all := list(t, n)
	var got []string
	for _, e := range all {
		got = append(got, fmt.Sprintf("%s foreign=%v", e.Name, e.Foreign != ""))
	}
	want := []string{"half foreign=true", k.Name + " foreign=false", "old_vol_data.json.1 foreign=true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, e := range all {
		if e.Name == "old_vol_data.json.1" && e.Bytes != 5 {
			t.Errorf("%+v", e)
		}
	}
}

// A crash between record and move leaves a record without an entry: it is reported, counts 0 bytes, and is removed.
func TestQuarantineCrash(t *testing.T) {
	n := mutatetest.New(t)
	k := kept(t, n)
	if err := os.RemoveAll(filepath.Join(n.Mutator.QuarantineDir(), k.Name)); err != nil {
		t.Fatal(err)
	}
	n.Write(filepath.Join(n.Mutator.QuarantineDir(), "."+k.Name+".json.new"), "torn")
	all := list(t, n)
	if len(all) != 1 || all[0].Foreign != "" || all[0].Bytes != 0 {
		t.Fatalf("%+v", all)
	}
	if err := errors.Join(n.Mutator.NoteQuarantine(t.Context(), all[0]), n.Mutator.EmptyQuarantine(t.Context(),
		all[0])); err != nil {
		t.Fatal(err)
	}
	if all := list(t, n); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

func TestReadNote(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	file := n.Write(n.PodDir(uid, "v/note"), "text")
	note, err := n.Mutator.ReadNote(t.Context(), uid, "v/note")
	if err != nil || string(note.Content) != "text" || note.File != mutatetest.FileID(t, file) {
		t.Errorf("%+v, %v", note, err)
	}
	for _, name := range []string{"v/none", "none/none"} {
		if _, err := n.Mutator.ReadNote(t.Context(), uid, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	n.Write(n.PodDir(uid, "v/large"), strings.Repeat("x", 64<<10+1))
	if err := errors.Join(os.Symlink("note", n.PodDir(uid, "v/link")),
		os.Symlink("v", n.PodDir(uid, "dir"))); err != nil {
		t.Fatal(err)
	}
	n.Write(n.PodDir(uid, "v/bound"), "")
	n.Mount(file, n.PodDir(uid, "v/bound"), "", unix.MS_BIND)
	for _, name := range []string{"v/large", "v/link", "dir/note", "v/bound", "v", "", "../x", "/etc/hostname"} {
		if note, err := n.Mutator.ReadNote(t.Context(), uid, name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %+v, %v", name, note, err)
		}
	}
}

// Only regular files are opened at all.
func TestReadNoteOfPipe(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	n.Mkdir(n.PodDir(uid))
	for name, mode := range map[string]uint32{"pipe": unix.S_IFIFO, "socket": unix.S_IFSOCK, "device": unix.S_IFCHR} {
		if err := unix.Mknod(n.PodDir(uid, name), mode|0o600, int(unix.Mkdev(1, 3))); err != nil { // the null device
			t.Fatal(err)
		}
		if note, err := n.Mutator.ReadNote(t.Context(), uid, name); err == nil ||
			!strings.Contains(err.Error(), "is not a regular file") {
			t.Errorf("%s: %+v, %v", name, note, err)
		}
	}
}

func TestTreeOfMountedDirectory(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	n.Mount("tmpfs", n.PodDir(uid), "tmpfs", 0)
	n.Write(n.PodDir(uid, "etc-hosts"), "x")
	var refusal mutate.Refusal
	if tree, err := n.Mutator.Tree(t.Context(), uid); !errors.As(err, &refusal) {
		t.Errorf("%+v, %v", tree, err)
	}
	other := mutatetest.UID(t)
	n.Write(n.PodDir(other), "a file")
	if tree, err := n.Mutator.Tree(t.Context(), other); !errors.As(err, &refusal) {
		t.Errorf("%+v, %v", tree, err)
	}
}

func TestTreeIsBounded(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	dir := n.Mkdir(n.PodDir(uid, "many"))
	for i := range 20_001 {
		if err := unix.Mknod(filepath.Join(dir, fmt.Sprint(i)), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	var refusal mutate.Refusal
	if _, err := n.Mutator.Tree(t.Context(), uid); !errors.As(err, &refusal) ||
		!strings.Contains(refusal.Why, "more than 20000 entries") {
		t.Error(err)
	}
}

// A link to another place in the same pod is not followed either.
func TestLinkInsideThePod(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	file := n.Write(n.PodDir(uid, "data/file"), "x")
	empty := n.Mkdir(n.PodDir(uid, "data/empty"))
	if err := os.Symlink("data", n.PodDir(uid, "link")); err != nil {
		t.Fatal(err)
	}
	before := mutatetest.Snapshot(t, n.Dir)
	for name, err := range map[string]error{
		"file":       n.Mutator.RemoveFile(t.Context(), uid, "link/file", mutatetest.FileID(t, file)),
		"directory":  n.Mutator.RemoveDir(t.Context(), uid, "link/empty", mutatetest.FileID(t, empty)),
		"quarantine": n.Mutator.Quarantine(t.Context(), uid, "link/file", mutatetest.FileID(t, file), plenty),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if diff := cmp.Diff(before, mutatetest.Snapshot(t, n.Dir)); diff != "" {
		t.Error(diff)
	}
}

// The record is on disk before the move.
func TestQuarantineRecord(t *testing.T) {
	n := mutatetest.New(t)
	k := kept(t, n)
	data, err := os.ReadFile(filepath.Join(n.Mutator.QuarantineDir(), "."+k.Name+".json"))
	var record mutate.Kept
	if err := errors.Join(err, json.Unmarshal(data, &record)); err != nil || record.File != k.File ||
		record.UID != k.UID {
		t.Errorf("%s: %v", data, err)
	}
	if st, err := os.Stat(n.Mutator.QuarantineDir()); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
}
