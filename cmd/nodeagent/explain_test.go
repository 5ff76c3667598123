package main

import (
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/daemon"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
)

// TestExplainWhatStatusShows: explain accepts every name that status prints.
func TestExplainWhatStatusShows(t *testing.T) {
	names := []string{"PodLeftovers", "StateNotSafe", "AgentConfigInvalid", "AgentConfigNotLoaded", "SourceLost"}
	for _, c := range daemon.OwnChecks() {
		names = append(names, c.ID)
	}
	for _, name := range names {
		var page strings.Builder
		if err := explain(&page, name, config.Default()); err != nil || !strings.Contains(page.String(), "Next.") {
			t.Errorf("%s: %v\n%s", name, err, page.String())
		}
	}
}

// TestMistypedCommands: a command line with a mistake has no effect and exits with the code for mistakes.
func TestMistypedCommands(t *testing.T) {
	for _, args := range []string{"chekc", "status --output=yaml", "check no-such-check", "explain",
		"inspect nothing"} {
		if code := run(t.Context(), strings.Fields(args)); code != exitCouldNotTell {
			t.Errorf("nodeagent %s: exit code %d", args, code)
		}
	}
}
