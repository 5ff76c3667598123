package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/test/kernelformats/formats"
)

const source = `
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt /* "not this" */
#define GONE "is gone"
static void f(void) {
	pr_err("%s: reset failed (%d)\n", name, // pr_err("a comment")
	       -EIO);
	dev_warn(&pdev->dev, "device " GONE ", "
		 "giving up\n");
	pr_debug("debugging output\n");
	printk(KERN_CONT "the rest of a line\n");
	netdev_err(dev, "timed out; " "queue %" PRIu64 "\n", q);
}
#undef pr_fmt
#define pr_fmt(fmt) "other: " fmt
static void g(void) { pr_crit_unknown("no printer"); pr_crit("dead\n"); }
`

func TestExtract(t *testing.T) {
	kernel := tree{files: map[string]string{"drivers/x/part.c": source,
		"drivers/x/Makefile": "obj-$(CONFIG_X) += my-x.o\nmy-x-y := main.o \\\n  part.o\n"}}
	f := family{name: "x", files: []string{"drivers/x/*.c"}}
	var got []string
	for _, p := range f.formats(&kernel) {
		got = append(got, p.format)
	}
	want := []string{"my_x: %s: reset failed (%d)\n", "my_x {pci}: device is gone, giving up\n",
		"my_x {pci} {eth}: timed out; queue %llu\n", "other: dead\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestWide: errors are taken whatever their text, also from printers not in a list and from macros around a known one.
func TestWide(t *testing.T) {
	kernel := tree{files: map[string]string{"drivers/nvme/x.c": `
#define x_err(dev, fmt, ...) dev_err((dev)->device, "engine %d: " fmt, (dev)->id, ##__VA_ARGS__)
static void f(void) {
	x_err(dev, "what it says does not matter\n");
	y_crit(dev, "nobody lists me\n");
	dev_warn(dev, "below\n");
}
`}}
	var got []string
	for _, p := range wide(&kernel, atError) {
		got = append(got, p.format)
	}
	want := []string{"x {pci}: engine %d: %s", // the macro itself
		"x {pci}: engine %d: what it says does not matter\n", "x {pci}: nobody lists me\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestLevelOf: a line has the level of the format that covers most of it.
func TestLevelOf(t *testing.T) {
	known := map[string][]*levelled{}
	for _, p := range []printed{{text: "queue %d timed out\n", level: atError}, {text: "queue %d timed out, as expected\n",
		level: belowWarning}} {
		l := newLevelled(p)
		known[l.key[:leastKey]] = append(known[l.key[:leastKey]], l)
	}
	for line, want := range map[string]string{"x 1-1: queue 3 timed out": "error",
		"x 1-1: queue 3 timed out, as expected": "below", "x 1-1: all is well": "?"} {
		if got := levelOf(known, line).String(); got != want {
			t.Errorf("%s, want %s: %s", got, want, line)
		}
	}
}

// TestNewKernel: the changes of a kernel are shown; unchanged formats keep their verdicts.
func TestNewKernel(t *testing.T) {
	rows := []formats.Row{{File: "a.c", Verdict: "nic-hang", Versions: []string{"6.1"}, Format: "card hung"},
		{File: "a.c", Verdict: "nic-hang", Versions: []string{"6.1"}, Format: "reset of card %d failed"}}
	now := []printed{{file: "a.c", format: "card hung"}, {file: "a.c", format: "reset of card %d did fail"},
		{file: "b.c", format: "quite new"}}
	d := compare(rows, now, "6.12")
	if len(d.added) != 1 || len(d.changed) != 1 || len(d.removed) != 0 || d.before != "6.1" {
		t.Errorf("%+v", d)
	}
	merged := merge(rows, now, "6.12")
	i := slices.IndexFunc(merged, func(r formats.Row) bool { return r.Format == "card hung" })
	if len(merged) != 4 || merged[i].Verdict != "nic-hang" || strings.Join(merged[i].Versions, " ") != "6.1 6.12" {
		t.Errorf("%+v", merged)
	}
	for _, r := range merged {
		if isNew := !slices.Contains(r.Versions, "6.1"); isNew != (r.Verdict == formats.Unjudged) {
			t.Errorf("%+v", r)
		}
	}
}

// TestFileOfFamily: a written file reads back the same.
func TestFileOfFamily(t *testing.T) {
	dir := t.TempDir()
	want := []formats.Row{{File: "a.c", Verdict: "-", Versions: []string{"6.1", "6.12"}, Format: "100 \\ \t%s \n",
		Args: [][]string{{"", " a", `b`}, {"c"}}}}
	if err := formats.Write(dir, "x", "head\n", slices.Clone(want)); err != nil {
		t.Fatal(err)
	}
	got, err := formats.Read(dir, "x")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
