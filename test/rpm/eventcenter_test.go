package rpm_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/need"
)

// TestEventCenter: the event center's package is installed, started, queried, upgraded in place and removed; its stored
// events stay.
func TestEventCenter(t *testing.T) {
	need.Flag(t, *long, "-long: builds another package")
	t.Parallel()
	m := boot(t)
	dir := t.TempDir()
	if err := makeRPM("rpm-eventcenter", older, dir); err != nil {
		t.Fatal(err)
	}
	if out, err := command("rpmlint", "--strict", "-c", "packaging/rpm/rpmlint.toml", "packaging/rpm/eventcenter.spec"); err != nil {
		t.Errorf("rpmlint: %s", out)
	}
	file := "/root/eventcenter.rpm"
	copyFile(t, filepath.Join(dir, "eventcenter-"+older+"-1.x86_64.rpm"), filepath.Join(m.root, file))
	m.run("rpm", "-i", "--nodeps", file)
	if state := m.try("systemctl", "is-active", "eventcenter"); strings.TrimSpace(state.stdout) != "inactive" {
		t.Errorf("after the installation it is %q: nobody has started it", state.stdout)
	}
	m.run("systemctl", "enable", "--now", "eventcenter")
	ask := []string{"eventcenter", "nodes", "--dir", "/var/lib/eventcenter"}
	m.eventually("the center to answer", func() error {
		if out := m.try(ask...); out.code != 0 || !strings.Contains(out.stdout, "CLUSTER") {
			return errors.New(out.stdout + out.stderr)
		}
		return nil
	})
	if got := strings.TrimSpace(m.run("stat", "-c", "%U %a", "/var/lib/eventcenter")); got != "eventcenter 700" {
		t.Errorf("its directory is of %s", got)
	}
	if user := m.run("systemctl", "show", "-p", "User,NoNewPrivileges,CapabilityBoundingSet", "eventcenter"); !strings.Contains(user,
		"User=eventcenter") || !strings.Contains(user, "NoNewPrivileges=yes") || !strings.Contains(user, "CapabilityBoundingSet=\n") {
		t.Errorf("it may more than it needs: %s", user)
	}
	token := m.run("cat", "/var/lib/eventcenter/token")
	m.run("rpm", "-U", "--nodeps", "--replacepkgs", file)
	m.eventually("the center to answer after an upgrade", func() error {
		if out := m.try(ask...); out.code != 0 {
			return errors.New(out.stdout + out.stderr)
		}
		return nil
	})
	if m.run("cat", "/var/lib/eventcenter/token") != token {
		t.Error("an upgrade has made another token")
	}
	m.run("rpm", "-e", "eventcenter")
	if m.try("systemctl", "is-active", "eventcenter").code == 0 || m.exists("/usr/bin/eventcenter") {
		t.Error("it was removed, and still runs or is there")
	}
	if !m.exists("/var/lib/eventcenter/journal") {
		t.Error("what it has stored is gone with it")
	}
}
