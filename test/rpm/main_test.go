// Package rpm_test installs the real package into a real Debian with a real systemd, in a container of systemd-nspawn,
// and subjects it to the events in the life of a node: upgrades, bad configurations, crashes, hangs, reboots.
//
// It needs root and the Debian packages cpio, rpm, rpmlint, systemd-container and debootstrap. The first run makes a
// Debian root filesystem in .cache/debian-12 of the checkout; each test boots a copy-on-write copy of it.
//
// The machines run in parallel, except for the first one, which runs all checks by hand: some give up after seconds.
package rpm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if packages.made {
		_ = os.RemoveAll(packages.dir)
	}
	os.Exit(code)
}

// versions are those before and after an upgrade. The second has a different configuration file.
const (
	older = "1.0.0"
	newer = "1.1.0"
)

// packages are built, and the root filesystem of the machines is made, once for all tests of this run.
var packages builtPackages

type builtPackages struct {
	once   sync.Once
	made   bool
	dir    string
	debian string // root filesystem
	err    error
}

// needMachine skips a test if no machine can be booted.
func needMachine(t *testing.T) {
	t.Helper()
	need.Root(t, "boots a Debian with systemd in a container and installs the package there")
	needTools(t, "rpmbuild", "rpm", "rpm2cpio", "cpio", "rpmlint", "systemd-nspawn", "debootstrap", "nsenter")
}

// needTools fails if a tool is missing: as root on Debian no test is skipped.
func needTools(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil && os.Geteuid() == 0 {
			t.Fatalf("%v: make packages", err)
		}
		need.Program(t, tool)
	}
}

// prepared returns the packages and the root filesystem.
func prepared(t *testing.T) *builtPackages {
	t.Helper()
	p := &packages
	p.once.Do(func() {
		made := make(chan error, 1)
		go func() { // it mostly waits for the mirror, and the packages for the compiler
			var err error
			p.debian, err = debian(context.Background())
			made <- err
		}()
		err := p.build()
		p.err = errors.Join(err, <-made)
	})
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p
}

// file is the package of a version for this machine, built by the same targets that users use.
func (p *builtPackages) file(version string) string {
	return filepath.Join(p.dir, fmt.Sprintf("nodeagent-%s-1.x86_64.rpm", version))
}

func (p *builtPackages) build() error {
	dir, err := os.MkdirTemp("", "nodeagent-rpm-")
	if err != nil {
		return err
	}
	p.dir, p.made = dir, true
	if err := makeRPM("rpm", older, dir); err != nil {
		return err
	}
	source := filepath.Join(dir, "SOURCES", "nodeagent-"+newer+".tar.gz")
	if err := makeRPM("rpm-source", newer, dir); err != nil {
		return err
	}
	return errors.Join(changeConfig(source, dir), makeRPM("rpm-build", newer, dir))
}

// makeRPM runs a target of packaging/rpm/Makefile.inc.
func makeRPM(target, version, dir string, variables ...string) error {
	arguments := append([]string{"--silent", "-f", "packaging/rpm/Makefile.inc", target, "RPM_ARCHES=x86_64",
		"RPM_VERSION=" + version, "RPM_DIR=" + dir}, variables...)
	_, err := command("make", arguments...)
	return err
}

// changeConfig gives a source tree another configuration file, so that an upgrade brings a different one.
func changeConfig(source, dir string) error {
	tree := filepath.Join(dir, "nodeagent-"+newer)
	if _, err := command("tar", "-C", dir, "-xzf", source); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(tree, "packaging/rpm/config.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString("# New in " + newer + ".\n")
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	_, err = command("tar", "-C", dir, "-czf", source, filepath.Base(tree))
	return errors.Join(err, os.RemoveAll(tree))
}

// command runs a program in the root of the checkout and returns its output.
func command(name string, arguments ...string) (string, error) {
	cmd := exec.Command(name, arguments...) //nolint:gosec // of this test
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(arguments, " "), err, out)
	}
	return string(out), nil
}

// included are the packages of the machines beside the minimum. The mirror is debootstrap's default.
const included = "systemd,systemd-sysv,dbus,rpm,e2fsprogs,procps,bash-completion"

// debian returns the root filesystem that all machines are copies of. It is made again after a change of included.
func debian(ctx context.Context) (string, error) {
	cache, err := filepath.Abs("../../.cache")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "debian-12.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { // another run may be making it
		return "", err
	}
	root := filepath.Join(cache, "debian-12")
	if have, _ := os.ReadFile(root + ".packages"); string(have) == included {
		return root, nil
	}
	fmt.Println("making a Debian 12 root filesystem in .cache/debian-12, once: about a minute")
	if err := os.RemoveAll(root); err != nil {
		return "", err
	}
	if err := debootstrap(ctx, root); err != nil {
		return "", err
	}
	return root, os.WriteFile(root+".packages", []byte(included), 0o600)
}

// debootstrap makes a root filesystem: completely, or not at all.
func debootstrap(ctx context.Context, root string) error {
	half := root + ".half"
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "debootstrap", "--variant=minbase", "--merged-usr",
		"--include="+included, "bookworm", half)
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
		return fmt.Errorf("debootstrap: %w: %s", err, lines[len(lines)-1])
	}
	if err := os.RemoveAll(filepath.Join(half, "var/cache/apt/archives")); err != nil {
		return err
	}
	return os.Rename(half, root)
}
