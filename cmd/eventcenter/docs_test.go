package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/test/need"
)

// quickStart returns the commands of the quick start: the indented lines before the next chapter.
func quickStart(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/event-center.md")
	must(t, err)
	_, text, _ := strings.Cut(string(page), "## Quick start\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var commands strings.Builder
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "    "); ok && !strings.HasPrefix(command, "make ") {
			commands.WriteString(command)
		}
	}
	return commands.String()
}

// The commands of the quick start work unchanged, except for the port and the build.
func TestQuickStart(t *testing.T) {
	need.Program(t, "sh")
	need.Program(t, "curl")
	dir := t.TempDir()
	script := "#!/bin/sh\nEVENTCENTER_TEST_MAIN=1 exec '" + os.Args[0] + "' \"$@\"\n"
	must(t, executable.Write(filepath.Join(dir, "eventcenter"), []byte(script)))
	commands := quickStart(t)
	if strings.Count(commands, "\n") < 10 {
		t.Fatalf("only\n%s", commands)
	}
	commands = strings.Replace(commands, " &\n", " --listen 127.0.0.1:0 & pid=$!\ntrap 'kill $pid; wait $pid' EXIT\n"+
		"until [ -s eventcenter-data/address ]; do sleep 0.1; done\n", 1)
	commands = strings.ReplaceAll(commands, "http://127.0.0.1:10685", "$(cat eventcenter-data/address)")
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", commands)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"data in ", `{"offset":"1","stored":1`, "CLUSTER", "SEVERITY", "com.example.hello",
		"hello", "the whole journal can be read", "event: bookmark", "id: 1\ndata: ", "/login\ncode: "} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
