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

// TestNewKernel: what a kernel changed is shown, and keeps the verdict of what it did not change.
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

// TestFileOfFamily: what is written is read as it was.
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
