package rpm_test

import (
	"os"
	"strings"
	"testing"
)

// TestTheDocumentation runs every command of docs/install-rpm.md, from top to bottom, as a reader would.
func TestTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/install-rpm.md")
	if err != nil {
		t.Fatal(err)
	}
	m := boot(t) // built by the very target that the page names
	for _, block := range blocks(string(text)) {
		for command := range strings.Lines(block.text) {
			command = strings.TrimSpace(command)
			switch block.kind {
			case "sh":
				m.run("sh", "-c", "cd /root && "+command)
			case "sh build":
				if command != "make rpm" {
					t.Errorf("no test runs %q", command)
				}
			default:
				t.Errorf("what is a block of kind %q?", block.kind)
			}
		}
	}
}

type block struct{ kind, text string }

// blocks returns the fenced blocks of a page.
func blocks(page string) []block {
	var found []block
	for i, part := range strings.Split("\n"+page, "\n```") {
		if i%2 == 1 {
			kind, text, _ := strings.Cut(part, "\n")
			found = append(found, block{kind, text})
		}
	}
	return found
}
