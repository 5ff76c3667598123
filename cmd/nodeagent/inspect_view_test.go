package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// recordedNode is a node on which a pod left a sandbox and a container: see pkg/inspect/recorded_test.go.
const recordedNode = "../../pkg/inspect/testdata/leftover.json.gz"

// inspected runs "nodeagent inspect" and returns its output and error.
func inspected(args ...string) (string, error) {
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"inspect"}, args...))
	err := root.Execute()
	return out.String(), err
}

func TestInspectFromAFile(t *testing.T) {
	b, err := bundle.Read(recordedNode)
	if err != nil {
		t.Fatal(err)
	}
	report, _ := b.Evidence.Evaluate()
	var screen, contract strings.Builder
	if err := printReport(&screen, report, release.Settings{}, false, false); err != nil {
		t.Fatal(err)
	}
	if err := printJSON(&contract, complete(report)); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{screen.String(): nil, contract.String(): {"-o", "json"}} {
		got, err := inspected(append(args, "--from", recordedNode)...)
		if diff := cmp.Diff(want, got); diff != "" || exitOf(err) != exitProblems {
			t.Errorf("%v: %s", err, diff)
		}
	}
	got, err := inspected("--from", recordedNode, "container", "-o", "json")
	var part object.Report
	if json.Unmarshal([]byte(got), &part) != nil || len(part.Objects) != 11 || exitOf(err) != exitProblems {
		t.Errorf("%d containers, %v", len(part.Objects), err)
	}
}

func TestInspectExplains(t *testing.T) {
	const sandbox = "00000003000040008000000000000000" // of the deleted pod
	got, err := inspected("--from", recordedNode, "--explain", "sandbox/"+sandbox)
	if exitOf(err) != exitProblems {
		t.Fatal(err)
	}
	for _, want := range []string{
		"sandbox " + sandbox, "of pod default/web-3 (00000003-0000-4000-8000-000000000000)", "LEFTOVER: no witness knows pod",
		"identity\n", "created ", "state               READY",
		"apiserver           does not know (asked at ", "runtime             knows: sandbox READY (asked at ",
		"open    kubelet-heard: kubelet has 10 pods", "open    no-mass-orphaning: 1 of ",
		"passes 11; needed: 3 that span 10m0s", "denied by the apiserver ", "would stop the containers of sandbox",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	got, err = inspected("--from", strings.Replace(recordedNode, "leftover", "running", 1), "--explain",
		"sandbox/"+sandbox)
	if !strings.Contains(got, "apiserver, by name  the apiserver has no pod default/web-3 (asked at ") ||
		!strings.Contains(got, "its pod is running, and was denied 2026-") || exitOf(err) != exitProblems {
		t.Errorf("%v: %s", err, got)
	}
	got, err = inspected("--from", recordedNode, "--explain", "sandbox/000000040000", "-o", "json")
	var e explanation
	if json.Unmarshal([]byte(got), &e) != nil || exitOf(err) != exitFine || e.Object.Verdict != object.Live ||
		len(e.Gates) == 0 || e.Asked[object.Kubelet].IsZero() || e.Not == "" || e.Release != "" {
		t.Errorf("%v: %s", err, got)
	}
	for name, want := range map[string]string{
		"0000003": "2 objects match", "mount/0": "no object has the name", "nothing": "no object has the name",
	} {
		if got, err = inspected("--from", recordedNode, "--explain", name); err == nil || got != "" || exitOf(err) != -1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %s", name, err, got)
		}
	}
}

func TestInspectFlagsThatExcludeEachOther(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"exclude":     {"--record", "x", "--from", recordedNode},
		"is for":      {"--anonymous"},
		"name none":   {"--explain", "x", "mount"},
		"overwritten": {"--record", file},
		file:          {"--from", file},
	} {
		if _, err := inspected(args...); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v: %v, want %q", args, err, name)
		}
	}
	if data, _ := os.ReadFile(file); string(data) != "mine" {
		t.Error("the file was overwritten")
	}
}

func TestInspectRecords(t *testing.T) {
	b, err := bundle.Read(recordedNode)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "node.json.gz")
	cmd := newRoot()
	cmd.SetErr(io.Discard)
	v := inspectView{record: file, anonymous: true}
	if err := v.save(cmd, inspection{bundle: &b}); err != nil {
		t.Fatal(err)
	}
	stat, err := os.Stat(file)
	if err != nil || stat.Mode() != 0o600 {
		t.Errorf("%v, %v", stat.Mode(), err)
	}
	got, err := inspected("--from", file)
	if exitOf(err) != exitProblems || strings.Contains(got, "web-3") || !strings.Contains(got, "pod anon-") ||
		!strings.Contains(got, "22 objects: 2 leftover") {
		t.Errorf("%v: %s", err, got)
	}
	if err := v.save(cmd, inspection{bundle: &b}); err == nil {
		t.Error("it was overwritten")
	}
	hung := object.Report{Errors: []object.Failure{{What: "layout", Error: "discovery hangs"}}}
	v.record += "2"
	if err := v.save(cmd, inspection{report: hung}); err == nil || !strings.Contains(err.Error(), "discovery hangs") {
		t.Errorf("nothing is known, and recorded: %v", err)
	}
}
