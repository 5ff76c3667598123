package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Events of the next version's agents are stored unchanged, and the parts that this version knows are shown. Files of
// the next version are refused by name and not changed: the next version, or this one with its own files, can continue.
func TestNextVersion(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir)
	ofTomorrow := func(sequence uint64, change map[string]any) []byte {
		text, err := raised("n", sequence).Encode()
		var e map[string]any
		must(t, errors.Join(err, json.Unmarshal(text, &e)))
		for key, value := range change {
			e[key] = value
		}
		data, _ := e["data"].(map[string]any)
		data["weather"] = map[string]any{"sky": "clear"}
		text, err = json.Marshal(e)
		must(t, err)
		return text
	}
	for _, event := range [][]byte{
		ofTomorrow(1, map[string]any{"region": "eu"}), // more than this version knows
		ofTomorrow(2, map[string]any{"type": "io.github.nodeagent.fault.raised.v2",
			"dataschema": "https://nodeagent.github.io/schemas/fault.raised.v2.json"}),
	} {
		status, answer, err := p.do(http.MethodPost, "/v1/events", "application/cloudevents+json", event)
		if err != nil || status != http.StatusOK {
			t.Errorf("%d %s %v", status, answer, err)
		}
	}
	shows := func() {
		t.Helper()
		_, events, err := p.do(http.MethodGet, "/v1/events", "", nil)
		for _, want := range []string{`"region":"eu"`, "fault.raised.v2", `"sky":"clear"`} {
			if err != nil || !strings.Contains(string(events), want) {
				t.Errorf("no %s in %s (%v)", want, events, err)
			}
		}
		_, faults, err := p.do(http.MethodGet, "/v1/faults", "", nil)
		if err != nil || !strings.Contains(string(faults), `"total":1`) {
			t.Errorf("%s %v", faults, err)
		}
	}
	shows()
	p.stop(syscall.SIGTERM)
	rewrite(t, filepath.Join(dir, "model.json"), `"version":1`, `"version":2`)
	p = start(t, dir) // it is derived: created again
	shows()
	p.stop(syscall.SIGTERM)

	day, err := filepath.Glob(filepath.Join(dir, "journal", "*.db"))
	if err != nil || len(day) != 1 {
		t.Fatal(day, err)
	}
	for _, file := range []struct {
		name, is string
		now      int
	}{{day[0], "reads format 3 only", 3}, {filepath.Join(dir, "control.db"), "knows 1", 1}} {
		format(t, file.name, file.now+1)
		before, err := os.ReadFile(file.name)
		must(t, err)
		out, code := cli(t, "serve", "--dir", dir, "--listen", "127.0.0.1:0")
		if code != exitCouldNotTell || !strings.Contains(out, fmt.Sprintf("its format is %d, this program %s", file.now+1, file.is)) {
			t.Errorf("%s of the next version: %d %s", file.name, code, out)
		}
		if after, err := os.ReadFile(file.name); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s was changed: %v", file.name, err)
		}
		format(t, file.name, file.now)
	}
	p = start(t, dir)
	shows()
	if err := p.post(raised("n", 3)); err != nil {
		t.Error(err)
	}
}

func rewrite(t *testing.T, name, from, to string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err == nil && !bytes.Contains(text, []byte(from)) {
		t.Fatalf("%s: no %s", name, from)
	}
	must(t, errors.Join(err, os.WriteFile(name, bytes.Replace(text, []byte(from), []byte(to), 1), 0o600)))
}

// format changes the format version in a SQLite file.
func format(t *testing.T, name string, version int) {
	t.Helper()
	db, err := sql.Open("sqlite", name)
	must(t, err)
	_, err = db.ExecContext(t.Context(), "UPDATE meta SET version = ?", version)
	must(t, errors.Join(err, db.Close()))
}
