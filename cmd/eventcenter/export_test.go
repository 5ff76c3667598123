package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// exported returns the offsets of an export's lines.
func exported(t *testing.T, text string) (offsets []string) {
	t.Helper()
	for line := range strings.Lines(text) {
		var e struct {
			SpecVersion, ID, Centeroffset, Centerreceived, Centerjournal string
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.SpecVersion != "1.0" || e.ID == "" ||
			len(e.Centerjournal) != 36 {
			t.Fatalf("%v: %s", err, line)
		}
		if _, err := time.Parse(time.RFC3339Nano, e.Centerreceived); err != nil {
			t.Fatal(err)
		}
		offsets = append(offsets, e.Centeroffset)
	}
	return offsets
}

// An export is a copy of the journal, each event once, even if it is cut off anywhere and continued; offsets or times
// select a part.
func TestExport(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "events.ndjson")
	p := start(t, dir)
	post := func(from, to uint64) {
		for n := from; n <= to; n++ {
			must(t, p.post(raised("node-1", n)))
		}
	}
	export := func(want int, flags ...string) string {
		t.Helper()
		out, code := cli(t, append([]string{"export", "--dir", dir}, flags...)...)
		if code != want {
			t.Fatalf("%v: %d %s", flags, code, out)
		}
		return out
	}
	post(1, 5)
	time.Sleep(2 * time.Millisecond) // times of receipt are in milliseconds
	middle := time.Now().UTC().Format(time.RFC3339Nano)
	time.Sleep(2 * time.Millisecond)
	post(6, 9)
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{nil, "[1 2 3 4 5 6 7 8 9]"}, {[]string{"--after", "3", "--until", "6"}, "[4 5 6]"}, {[]string{"--from", middle}, "[6 7 8 9]"},
		{[]string{"--to", middle}, "[1 2 3 4 5]"}, {[]string{"--from", "2001-01-01", "--to", "2001-01-02"}, "[]"},
		{[]string{"--after", "9"}, "[]"}, {[]string{"--until", "99"}, "[1 2 3 4 5 6 7 8 9]"},
	} {
		if got := fmt.Sprint(exported(t, export(exitFine, test.flags...))); got != test.want {
			t.Errorf("%v: %s, want %s", test.flags, got, test.want)
		}
	}
	export(exitFine, "--file", file, "--until", "4")
	whole, err := os.ReadFile(file)
	must(t, err)
	want := exported(t, export(exitFine))
	for _, cut := range []int{0, 1, 40, 200, len(whole) / 2, len(whole) - 1, len(whole)} {
		must(t, os.WriteFile(file, whole[:cut], 0o600))
		export(exitFine, "--file", file)
		text, err := os.ReadFile(file)
		must(t, err)
		if diff := cmp.Diff(want, exported(t, string(text))); diff != "" {
			t.Errorf("cut off at %d: %s", cut, diff)
		}
	}
	for text, reason := range map[string]string{"hello\n": "not of an export", "hello": "not of an export",
		`{"a":1}`: "not of an export", string(whole) + "notes": "not of an export", strings.ReplaceAll(string(whole),
			`"centerjournal":"`, `"centerjournal":"x`): "another journal"} {
		must(t, os.WriteFile(file, []byte(text), 0o600))
		if out := export(exitCouldNotTell, "--file", file); !strings.Contains(out, reason) {
			t.Errorf("no %q in %s", reason, out)
		}
		if left, err := os.ReadFile(file); err != nil || string(left) != text {
			t.Error("a file that is not an export was changed")
		}
	}
	if out := export(exitCouldNotTell, "--file", os.DevNull); !strings.Contains(out, "sync /dev/null") { // its error is not lost
		t.Errorf("no error of sync: %s", out)
	}
}
