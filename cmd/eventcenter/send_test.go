package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/need"
)

// The scripts of docs/send-events.md raise and end a fault unchanged.
func TestSendEvents(t *testing.T) {
	need.Program(t, "sh")
	need.Program(t, "curl")
	need.Program(t, "python3")
	page, err := os.ReadFile("../../docs/send-events.md")
	must(t, err)
	p := start(t, t.TempDir())
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), "CENTER="+p.url, "TOKEN="+p.token())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, args, out)
		}
		return string(out)
	}
	faults := func() string {
		return run("sh", "-euc", `curl -sS --fail-with-body "$CENTER/v1/faults" -H "Authorization: Bearer $TOKEN"`)
	}
	for language, shell := range map[string][]string{"sh": {"sh", "-euc"}, "python": {"python3", "-c"}} {
		_, block, _ := strings.Cut(string(page), "\n```"+language+"\n")
		block, _, _ = strings.Cut(block, "```\n")
		lines := strings.Split(strings.TrimSpace(block), "\n")
		if len(lines) < 9 || len(lines) > 11 {
			t.Fatalf("%s: %d lines", language, len(lines))
		}
		last, before := lines[len(lines)-1], lines[:len(lines)-2]
		run(shell[0], shell[1], strings.Join(lines[:len(lines)-1], "\n"))
		if got := faults(); !strings.Contains(got, `"reason":"FanStopped"`) || !strings.Contains(got, `"detector":"fan-`) ||
			!strings.Contains(got, `"node":"node-1"`) {
			t.Errorf("%s has raised nothing: %s", language, got)
		}
		run(shell[0], shell[1], strings.Join(append(before, last), "\n"))
		if got := faults(); !strings.Contains(got, `"faults":[]`) {
			t.Errorf("%s has not ended it: %s", language, got)
		}
	}
}
