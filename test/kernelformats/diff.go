package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/test/kernelformats/formats"
)

// difference is the change of one version in a family, against the previous version in the data.
type difference struct {
	before         string
	added, removed []printed
	changed        [][2]printed
}

func (d difference) count() int { return len(d.added) + len(d.removed) + len(d.changed) }

// compare returns the differences from the newest older version, or from the version itself if the data has it.
func compare(rows []formats.Row, now []printed, version string) (d difference) {
	for _, r := range rows {
		for _, v := range r.Versions {
			if formats.CompareVersions(v, version) <= 0 && (d.before == "" || formats.CompareVersions(d.before,
				v) < 0) {
				d.before = v
			}
		}
	}
	is := map[string]bool{}
	for _, p := range now {
		is[p.format] = true
	}
	was := map[string]bool{}
	for _, r := range rows {
		if !slices.Contains(r.Versions, d.before) {
			continue
		}
		was[r.Format] = true
		if !is[r.Format] {
			d.removed = append(d.removed, printed{file: r.File, format: r.Format})
		}
	}
	for _, p := range now {
		if !was[p.format] {
			d.added = append(d.added, p)
		}
	}
	d.pair()
	return d
}

// pair matches added formats with removed ones: most of their words are the same.
func (d *difference) pair() {
	var removed []printed
	for _, old := range d.removed {
		best, most := -1, 0.5
		for i, p := range d.added {
			if s := similar(old.format, p.format); s > most {
				best, most = i, s
			}
		}
		if best < 0 {
			removed = append(removed, old)
			continue
		}
		d.changed = append(d.changed, [2]printed{old, d.added[best]})
		d.added = slices.Delete(d.added, best, best+1)
	}
	d.removed = removed
}

// similar returns the share of common words among the words of both.
func similar(a, b string) float64 {
	wordsOfA, wordsOfB := strings.Fields(a), strings.Fields(b)
	same := 0
	for _, word := range wordsOfA {
		if slices.Contains(wordsOfB, word) {
			same++
		}
	}
	return float64(2*same) / float64(len(wordsOfA)+len(wordsOfB))
}

func (d difference) print(out io.Writer, family, version string) {
	if d.count() == 0 {
		return
	}
	before := "no data"
	if d.before != "" {
		before = d.before
	}
	fmt.Fprintf(out, "%s: %s against %s: %d added, %d removed, %d changed\n", family, version, before, len(d.added),
		len(d.removed), len(d.changed))
	if d.before == "" {
		return // all of them are new
	}
	for _, p := range d.added {
		fmt.Fprintf(out, "  + %s: %q\n", p.file, p.format)
	}
	for _, p := range d.removed {
		fmt.Fprintf(out, "  - %s: %q\n", p.file, p.format)
	}
	for _, c := range d.changed {
		fmt.Fprintf(out, "  ~ %s: %q\n    now %q\n", c[1].file, c[0].format, c[1].format)
	}
}

// merge adds the formats of a version to the rows; verdicts and arguments stay. Rows without any version are dropped.
func merge(rows []formats.Row, now []printed, version string) (merged []formats.Row) {
	at := map[string]printed{}
	for _, p := range now {
		at[p.format] = p
	}
	for _, r := range rows {
		r.Versions = slices.DeleteFunc(slices.Clone(r.Versions), func(v string) bool { return v == version })
		if p, ok := at[r.Format]; ok {
			delete(at, r.Format)
			r.Versions = append(r.Versions, version)
			slices.SortFunc(r.Versions, formats.CompareVersions)
			if r.Versions[len(r.Versions)-1] == version {
				r.File = p.file
			}
		}
		if len(r.Versions) > 0 {
			merged = append(merged, r)
		}
	}
	for _, p := range now {
		if _, isNew := at[p.format]; isNew {
			delete(at, p.format)
			merged = append(merged, formats.Row{File: p.file, Verdict: formats.Unjudged, Versions: []string{version},
				Format: p.format})
		}
	}
	return merged
}
