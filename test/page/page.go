// Package page reads the commands of the pages in docs, so that tests run them from top to bottom, as a reader would.
package page

import (
	"os"
	"strings"
)

// Command is one line of a fenced block.
type Command struct {
	Kind string // what stands behind the fence: "sh", or "sh build" for what is run where the agent is built
	Line string
}

// Commands returns the commands of a page. The kind of a block defines who runs it; a caller that does not
// know a kind must not pass over it.
func Commands(file string) ([]Command, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var found []Command
	for i, part := range strings.Split("\n"+string(text), "\n```") {
		if i%2 == 0 {
			continue // between blocks
		}
		kind, block, _ := strings.Cut(part, "\n")
		for line := range strings.Lines(block) {
			found = append(found, Command{kind, strings.TrimSpace(line)})
		}
	}
	return found, nil
}
