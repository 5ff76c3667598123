package rpm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/test/page"
)

// TestTheDocumentation runs every command of docs/install-rpm.md, from top to bottom, like a reader.
func TestTheDocumentation(t *testing.T) {
	t.Parallel()
	m := boot(t) // built by the target that the page names
	m.followPage("install-rpm.md", "make rpm")
}

// TestTheDocumentationOfTheTool runs every command of the pages for people with a running agent.
func TestTheDocumentationOfTheTool(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.followPage("troubleshoot.md", "")
	m.followPage("configure.md", "")
	m.followPage("node-problem-detector.md", "")
}

// TestTheDocumentationByHand installs the agent without its package, as docs/install-by-hand.md says.
func TestTheDocumentationByHand(t *testing.T) {
	t.Parallel()
	m := boot(t)
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := command("make", "-C", repo, "build"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"nodeagent", "systemd/nodeagent.service"} {
		to := filepath.Join(m.root, "root", name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		copyFile(t, filepath.Join(repo, name), to)
	}
	m.run("chmod", "0755", "/root/nodeagent")
	m.followPage("install-by-hand.md", "make build")
}

// followPage runs every command of a page in the machine. built is the command that was already run, outside.
func (m *machine) followPage(name, built string) {
	m.t.Helper()
	commands, err := page.Commands("../../docs/" + name)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, command := range commands {
		switch command.Kind {
		case "sh":
			m.run("sh", "-c", "cd /root && "+command.Line)
		case "sh build":
			if command.Line != built {
				m.t.Errorf("%s: no test runs %q", name, command.Line)
			}
		default:
			m.t.Errorf("%s: what is a block of kind %q?", name, command.Kind)
		}
	}
}
