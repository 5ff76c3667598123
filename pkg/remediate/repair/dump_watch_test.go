package repair

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate"
)

// A jump of the wall clock makes no core dump old: only those observed for coreDumpAge are removed, also by an agent
// that was started again. A dump that was changed is young again.
func TestYoungDumpsOutliveAJumpOfTheWallClock(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		d := onDisk(w)
		d.unobserved = true
		d.settings.DiskSpace.CoreDumpAge = 4 * time.Hour
		d.dump("core.first", 0)
		d.dump("core.changed", 0)
		d.fill(8)
		stays := func(when, want string) {
			t.Helper()
			if why := w.round(t.Context()); !strings.Contains(why, want) {
				t.Errorf("%s: %q, want %q", when, why, want)
			}
		}
		stays("the clock has jumped ten days ahead", "2, none is older than 4h0m0s and observed for that long")
		run := func(hours int) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(hours)*time.Hour)
			defer cancel()
			if err := w.runner().Run(ctx); err != nil {
				t.Error(err)
			}
		}
		run(3)
		stays("after three hours", "observed for that long")
		file := filepath.Join(d.dir, "coredump/core.changed")
		if err := os.Chtimes(file, time.Time{}, fileTime(t, file).Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		d.dump("core.new", 0)
		run(2)
		if why := w.round(t.Context()); why != "" {
			t.Fatal(why)
		}
		if want := []string{"core.changed", "core.new"}; !slices.Equal(d.names(), want) {
			t.Errorf("left: %q, want %q", d.names(), want)
		}
	})
}

// Over a boot only the time since boot is added. A file of an agent that cannot be read makes all dumps young.
func TestAgesOfDumpsOverABoot(t *testing.T) {
	dir, files := t.TempDir(), []mutate.FolderFile{{Name: "core.1"}}
	at := hosttest.Now()
	var w dumpWatch
	w.observe(at, files)
	at.SinceBoot += 2 * time.Hour
	at.Wall = at.Wall.AddDate(-10, 0, 0) // a jump
	w.observe(at, files)
	if err := w.save(dir); err != nil {
		t.Fatal(err)
	}
	at.Boot, at.SinceBoot, at.Wall = "another", 5*time.Minute, at.Wall.AddDate(20, 0, 0)
	var next dumpWatch
	next.load(dir)
	want := map[string]time.Duration{dumpKey(files[0]): 2*time.Hour + 5*time.Minute}
	if diff := cmp.Diff(want, next.observe(at, files)); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(filepath.Join(dir, dumpsFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var none dumpWatch
	none.load(dir)
	if ages := none.observe(at, files); ages[dumpKey(files[0])] != 0 || len(ages) != 1 {
		t.Errorf("%v", ages)
	}
}
