package owned_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600), os.Chmod(name, mode))
}

func root(t *testing.T) {
	t.Helper()
	need.Root(t, "gives files away")
}

func TestProgram(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(t *testing.T, dir string) // dir/bin/program is a valid script
		want  string                         // part of the refusal; empty: it may be run
	}{
		"a script": {func(*testing.T, string) {}, ""},
		"of a user's": {func(t *testing.T, dir string) {
			root(t)
			must(t, os.Chown(dir+"/bin/program", 65534, 0))
		}, "program belongs to user 65534, mode 0755"},
		"that its group may write": {func(t *testing.T, dir string) {
			must(t, os.Chmod(dir+"/bin/program", 0o775))
		}, "mode 0775"},
		"that all may write": {func(t *testing.T, dir string) {
			must(t, os.Chmod(dir+"/bin/program", 0o757))
		}, "mode 0757"},
		"in a folder of a user's": {func(t *testing.T, dir string) {
			root(t)
			must(t, os.Chown(dir+"/bin", 65534, 0))
		}, "/bin belongs to user 65534"},
		"in a folder that all may write": {func(t *testing.T, dir string) {
			must(t, os.Chmod(dir+"/bin", 0o777))
		}, "/bin belongs to user"},
		"in a folder like /tmp": {func(t *testing.T, dir string) {
			must(t, os.Chmod(dir+"/bin", 0o777|os.ModeSticky))
		}, "mode 1777"},
		"below a folder that all may": {func(t *testing.T, dir string) {
			must(t, os.Chmod(dir, 0o777))
		}, "mode 0777"},
		"by a link":          {func(t *testing.T, dir string) { relink(t, dir, dir+"/other/program") }, ""},
		"by a relative link": {func(t *testing.T, dir string) { relink(t, dir, "../other/program") }, ""},
		"by a link into a bad folder": {func(t *testing.T, dir string) {
			relink(t, dir, "../other/program")
			must(t, os.Chmod(dir+"/other", 0o777))
		}, "/other belongs to user"},
		"by a link of a user's": {func(t *testing.T, dir string) {
			root(t)
			relink(t, dir, "../other/program")
			must(t, os.Lchown(dir+"/bin/program", 65534, 0))
		}, "/bin/program belongs to user 65534"},
		"by a link in /proc": {func(t *testing.T, dir string) {
			relink(t, dir, "/proc/self/exe")
		}, "owners and modes prove nothing"},
		"not executable": {func(t *testing.T, dir string) {
			must(t, os.Chmod(dir+"/bin/program", 0o644))
		}, "not executable"},
		"a folder": {func(t *testing.T, dir string) {
			must(t, os.Remove(dir+"/bin/program"), os.Mkdir(dir+"/bin/program", 0o755))
		}, "not a regular file"},
		"a FIFO": {func(t *testing.T, dir string) {
			must(t, os.Remove(dir+"/bin/program"), unix.Mkfifo(dir+"/bin/program", 0o755))
		}, "not a regular file"},
		"not there": {func(t *testing.T, dir string) { must(t, os.Remove(dir+"/bin/program")) }, "no such file"},
		"whose interpreter others may write": {func(t *testing.T, dir string) {
			write(t, dir+"/other/sh", "ELF", 0o777)
			write(t, dir+"/bin/program", "#! "+dir+"/other/sh -e\n", 0o755)
		}, "its interpreter"},
		"whose interpreter is relative": {func(t *testing.T, dir string) {
			write(t, dir+"/bin/program", "#!sh\n", 0o755)
		}, "not an absolute path"},
		"whose interpreter is itself": {func(t *testing.T, dir string) {
			write(t, dir+"/bin/program", "#!"+dir+"/bin/program\n", 0o755)
		}, "interpreters"},
		"that begins with nothing": {func(t *testing.T, dir string) {
			write(t, dir+"/bin/program", "", 0o755)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/bin/program", "#!/bin/sh\n", 0o755)
			write(t, dir+"/other/x", "", 0o644)
			test.spoil(t, dir)
			err := owned.Program(dir + "/bin/program")
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	if err := owned.Program("bin/sh"); err == nil {
		t.Error("a relative path is taken")
	}
}

// relink moves the program to another folder and leaves a link.
func relink(t *testing.T, dir, target string) {
	t.Helper()
	must(t, os.Rename(dir+"/bin/program", dir+"/other/program"), os.Symlink(target, dir+"/bin/program"))
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/etc/file", "content", 0o600)
	must(t, os.Symlink("/etc", dir+"/link"), os.Symlink("loop", dir+"/loop"), unix.Mkfifo(dir+"/fifo", 0o600))
	tree := owned.Tree{Root: dir}
	for _, name := range []string{"/etc/file", "/link/file", "//etc/./file", "/etc/../../../link/file"} {
		if data, err := tree.Read(name, 7); err != nil || string(data) != "content" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	for name, want := range map[string]error{"/etc/none": fs.ErrNotExist, "/loop": unix.ELOOP,
		"/etc/file/x": unix.ENOTDIR, "/fifo": nil, "/etc": nil, "etc/file": nil} {
		if _, err := tree.Read(name, 100); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	target := "/etc/file"
	for i := range 41 {
		name := fmt.Sprintf("/chain%d", i)
		must(t, os.Symlink(target, dir+name))
		if _, err := tree.Read(name, 100); (i < 40) != (err == nil) {
			t.Errorf("after %d links: %v", i+1, err)
		}
		target = name
	}
	if _, err := tree.Read("/etc/file", 6); err == nil {
		t.Error("a file above the limit is read")
	}
}

// The owner of a socket matters, but not who may connect to it.
func TestCheckSocket(t *testing.T) {
	root(t)
	dir := t.TempDir()
	listener, err := net.Listen("unix", dir+"/s")
	must(t, err)
	defer listener.Close()
	must(t, os.Chmod(dir+"/s", 0o777))
	if _, err := (owned.Tree{}).Check(dir + "/s"); err != nil {
		t.Error(err)
	}
	must(t, os.Chown(dir+"/s", 65534, 0))
	if _, err := (owned.Tree{}).Check(dir + "/s"); !errors.Is(err, owned.ErrOthers) {
		t.Errorf("a socket of a user's: %v", err)
	}
}
