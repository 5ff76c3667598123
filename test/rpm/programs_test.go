package rpm_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/need"
)

// program is a package of its own beside the agent's.
type program struct {
	name   string
	ask    string                         // verb that answers once it runs
	answer string                         // part of the answer
	code   int                            // exit code of the answer
	stored string                         // file that stays after the removal
	before func(t *testing.T, m *machine) // the start
}

// Each program's package is installed, started, queried, upgraded in place and removed; its stored data stay.
func TestPrograms(t *testing.T) {
	need.Flag(t, *long, "-long: builds other packages")
	for _, p := range []program{
		{name: "eventcenter", ask: "nodes", answer: "CLUSTER", stored: "journal", before: func(*testing.T, *machine) {}},
		{name: "tracecenter", ask: "health", answer: "Unknown since", code: 2, stored: "open.db", before: unreachableCluster},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.test(t)
		})
	}
}

// unreachableCluster configures an apiserver that does not answer: tracecenter must run, and say that it cannot tell.
func unreachableCluster(t *testing.T, m *machine) {
	t.Helper()
	kubeconfig := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:9"}}],
"users":[{"name":"u","user":{"token":"t"}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`
	if err := os.WriteFile(filepath.Join(m.root, "etc/tracecenter/kubeconfig"), []byte(kubeconfig), 0o640); err != nil {
		t.Fatal(err)
	}
	m.run("chgrp", "tracecenter", "/etc/tracecenter/kubeconfig")
}

func (p program) test(t *testing.T) {
	m := boot(t)
	dir := t.TempDir()
	if err := makeRPM("rpm-"+p.name, older, dir); err != nil {
		t.Fatal(err)
	}
	if out, err := command("rpmlint", "--strict", "-c", "packaging/rpm/rpmlint.toml", "packaging/rpm/"+p.name+".spec"); err != nil {
		t.Errorf("rpmlint: %s", out)
	}
	file := "/root/" + p.name + ".rpm"
	copyFile(t, filepath.Join(dir, p.name+"-"+older+"-1.x86_64.rpm"), filepath.Join(m.root, file))
	m.run("rpm", "-i", "--nodeps", file)
	if state := m.try("systemctl", "is-active", p.name); strings.TrimSpace(state.stdout) != "inactive" {
		t.Errorf("after the installation it is %q, but it was not started", state.stdout)
	}
	p.before(t, m)
	m.run("systemctl", "enable", "--now", p.name)
	data := "/var/lib/" + p.name
	answers := func() error {
		if out := m.try(p.name, p.ask, "--dir", data); out.code != p.code || !strings.Contains(out.stdout, p.answer) {
			return errors.New(out.stdout + out.stderr)
		}
		return nil
	}
	m.eventually("the program to answer", answers)
	if got := strings.TrimSpace(m.run("stat", "-c", "%U %a", data)); got != p.name+" 700" {
		t.Errorf("its directory is of %s", got)
	}
	if user := m.run("systemctl", "show", "-p", "User,NoNewPrivileges,CapabilityBoundingSet", p.name); !strings.Contains(user,
		"User="+p.name) || !strings.Contains(user, "NoNewPrivileges=yes") || !strings.Contains(user, "CapabilityBoundingSet=\n") {
		t.Errorf("it may more than it needs: %s", user)
	}
	token := m.run("cat", data+"/token")
	m.run("rpm", "-U", "--nodeps", "--replacepkgs", file)
	m.eventually("the program to answer after an upgrade", answers)
	if m.run("cat", data+"/token") != token {
		t.Error("an upgrade has made another token")
	}
	m.run("rpm", "-e", p.name)
	if m.try("systemctl", "is-active", p.name).code == 0 || m.exists("/usr/bin/"+p.name) {
		t.Error("it was removed, and still runs or is there")
	}
	if !m.exists(data + "/" + p.stored) {
		t.Error("its stored data are gone with it")
	}
}
