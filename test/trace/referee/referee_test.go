package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Source: kube-apiserver 1.36.3, the audit log of a run of test/trace/answerkey, with the fields and the pods that this
// test reads.
const recorded = "testdata/audit.jsonl"

func judge(t *testing.T, data []byte, promised time.Duration) (all []string) {
	t.Helper()
	g := newGame([]string{"none"})
	if err := g.read(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	for _, v := range g.verdicts(promised) {
		all = append(all, strings.TrimSpace(v.Name+" "+v.Act+" "+v.Verdict+" "+v.Why))
	}
	return all
}

func TestRecorded(t *testing.T) {
	data, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("testdata/verdicts.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(strings.TrimSpace(string(golden)), "\n"), judge(t, data, 20*time.Second)); diff != "" {
		t.Error(diff)
	}
	// Acts are open if they were not due at the end of the log, and the last line may be cut.
	for _, v := range judge(t, data[:len(data)-7], time.Hour) {
		if strings.Contains(v, "missed") && !strings.Contains(v, "failed without a start") && !strings.Contains(v, "removed by the system") {
			t.Errorf("within an hour: %s", v)
		}
	}
}

func TestMalformed(t *testing.T) {
	for _, text := range []string{"{\n", `{"stage":"ResponseComplete","verb":"create","objectRef":{"resource":"pods"},"responseStatus":{"code":201},"responseObject":[]}` + "\n"} {
		if err := newGame(nil).read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := run(nil, time.Minute, nil, &bytes.Buffer{}); err == nil {
		t.Error("no log: want an error")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		g := newGame(nil)
		if g.read(bytes.NewReader(data)) == nil {
			g.verdicts(time.Minute)
		}
	})
}
