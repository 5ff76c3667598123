package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
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

// The log may show a deletion late: with the change after it, whose object has its time. And it may show late that a pod
// got ready: with the deletion after it, whose object has the condition.
func TestLateLines(t *testing.T) {
	const line = `{"stage":"ResponseComplete","verb":"%s","objectRef":{"resource":"pods","subresource":"%s"},"responseStatus":{"code":200},` +
		`"stageTimestamp":"2026-11-29T12:00:0%dZ","responseObject":{"metadata":{"uid":"1","name":"p"%s},"spec":{"restartPolicy":"Always"},"status":{%s}}}` + "\n"
	const ready, deleted = `"conditions":[{"type":"Ready","status":"True"}]`, `,"deletionTimestamp":"2026-11-29T12:00:31Z","deletionGracePeriodSeconds":30`
	created := fmt.Sprintf(line, "create", "", 0, "", "")
	for text, want := range map[string]string{
		fmt.Sprintf(line, "patch", "status", 1, deleted, ready): "p creation excluded deleted before it was due",
		fmt.Sprintf(line, "delete", "", 1, deleted, ready):      "p creation delivered",
	} {
		if got := judge(t, []byte(created+text), time.Minute); !slices.Contains(got, want) {
			t.Errorf("%s: %v, want %s", text, got, want)
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
