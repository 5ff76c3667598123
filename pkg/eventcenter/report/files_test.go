package report

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A file that is no day is rejected, and a damaged one.
func TestDayFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "day")
	for _, text := range []string{"", "null", "[]", `{"version":1}`, `{"version":1,"nodes":null}`, `{"version":1,"nodes":{"a":null}}`,
		`{"version":1,"nodes":{"a":{}}`, `{"version":"x","nodes":{}}`, `{"version":2,"nodes":{}}`} {
		var packed bytes.Buffer
		out := gzip.NewWriter(&packed)
		_, err := out.Write([]byte(`{"name":"2026-11-20","faults":null}` + text))
		if err = errors.Join(err, out.Close(), os.WriteFile(file, packed.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
		if d, err := load(file, nil); err == nil {
			t.Errorf("%s is read as %+v", text, d)
		}
	}
}

// A day that an older version stored, without the state at its end, stays; the days after it are counted from the beginning
// of the journal.
func TestDayWithoutState(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	a := w.agent(`a "quoted" <node>`)
	w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 10*time.Second))
	w.at(21, 12, 0)
	w.store1(a.raise(newFault("disk", "sdb", finding.Fatal), 0))
	want := []Report{w.report(Daily, "2026-11-20"), w.report(Daily, "2026-11-21")}
	file := w.keeper.file("2026-11-20")
	d, err := load(file, nil)
	w.must(err)
	w.must(save(file, d, nil))
	before, err := os.ReadFile(file)
	w.must(err)
	w.open()
	if diff := cmp.Diff(want, []Report{w.report(Daily, "2026-11-20"), w.report(Daily, "2026-11-21")}); diff != "" {
		t.Error(diff)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Error("the stored day is written again", err)
	}
}
