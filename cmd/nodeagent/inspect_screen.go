package main

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// The bounds that keep a pod on one screen; --wide has none.
const (
	maxLinesOfKind    = 5
	maxHoldersPrinted = 4
)

// inspectScreen prints objects pod by pod.
type inspectScreen struct {
	screen
	strings.Builder
	now      finding.Timestamp
	pods     map[string]object.Pod // names by UID: holders have only the latter
	settings release.Settings      // decide which pods are opted out
}

func newInspectScreen(s screen, r object.Report) *inspectScreen {
	p := &inspectScreen{screen: s, now: r.At, pods: map[string]object.Pod{}}
	for i := range r.Objects {
		if pod := r.Objects[i].Pod; pod.Name != "" {
			p.pods[pod.UID] = pod
		}
	}
	return p
}

// trees prints a tree for each pod: its objects in the order of their release, equal lines folded, and the proof once
// if it is the same for all.
func (p *inspectScreen) trees(objects []object.Assessment) {
	for _, pod := range p.byPod(objects) {
		p.header(pod, shortPod)
		main := mainProof(pod)
		for _, kind := range groupedBy(pod, func(o object.Assessment) string { return string(o.Kind) }) {
			p.kind(kind, main)
		}
		p.textLine("why: ", shortWhy(main))
		p.textLine("witnesses: ", witnessText(main.Witnesses))
		if why := blocker(pod); why != "" {
			p.textLine("blocked: ", why)
		}
		if why := p.optedOut(pod); why != "" {
			p.textLine("kept: ", "none of it is released: "+why)
		} else if next := nextStep(pod); next != "" {
			p.textLine("next: ", next)
		}
		p.WriteString("\n")
	}
}

// optedOut returns why a pod is opted out of releases, according to its objects.
func (p *inspectScreen) optedOut(pod []object.Assessment) string {
	for _, o := range pod {
		if o.Verdict != object.Leftover && o.Verdict != object.Candidate {
			continue
		}
		namespace, labels := p.settings.OptedOut(o)
		if why := cmp.Or(namespace, labels); why != "" {
			return why
		}
	}
	return ""
}

// list prints each object by itself.
func (p *inspectScreen) list(objects []object.Assessment) {
	for _, pod := range p.byPod(objects) {
		p.header(pod, podName)
		for _, o := range pod {
			fmt.Fprintf(p, "  %s %s %s\n", strings.ToUpper(string(o.Verdict)), o.Kind, o.ID)
			fmt.Fprintf(p, "      why: %s\n      witnesses: %s\n", o.Why, witnessText(o.Witnesses))
			for _, h := range o.Holders {
				fmt.Fprintf(p, "      %s\n", holderText(h, podName))
			}
			if o.Release != "" {
				fmt.Fprintf(p, "      release: %s\n", o.Release)
			}
		}
		if why := p.optedOut(pod); why != "" {
			fmt.Fprintf(p, "  kept: none of it is released: %s\n", why)
		}
		p.WriteString("\n")
	}
}

// byPod groups objects by their pod, with the names of the pods of their holders. Proven leftovers come first.
func (p *inspectScreen) byPod(objects []object.Assessment) [][]object.Assessment {
	objects = slices.Clone(objects)
	for i := range objects {
		holders := slices.Clone(objects[i].Holders)
		for n := range holders {
			if named, ok := p.pods[holders[n].Pod.UID]; ok {
				holders[n].Pod = named
			}
		}
		objects[i].Holders = holders
	}
	pods := groupedBy(objects, func(o object.Assessment) string { return o.Pod.UID })
	first := func(pod []object.Assessment) int {
		return slices.IndexFunc(verdictOrder(), func(v object.Verdict) bool { return hasVerdict(pod, v) })
	}
	slices.SortStableFunc(pods, func(a, b []object.Assessment) int { return cmp.Compare(first(a), first(b)) })
	return pods
}

func verdictOrder() []object.Verdict {
	return []object.Verdict{object.Leftover, object.Candidate, object.Unknown, object.Unowned, object.Live,
		object.Foreign}
}

func hasVerdict(objects []object.Assessment, verdicts ...object.Verdict) bool {
	return slices.ContainsFunc(objects, func(o object.Assessment) bool { return slices.Contains(verdicts, o.Verdict) })
}

// header prints a pod, its verdicts and since when it has been observed.
func (p *inspectScreen) header(pod []object.Assessment, name func(object.Pod) string) {
	counts := map[object.Verdict]int{}
	var first finding.Timestamp
	named := pod[0].Pod
	for _, o := range pod {
		counts[o.Verdict]++
		if !o.FirstSeen.IsZero() && (first.IsZero() || p.now.Since(o.FirstSeen) > p.now.Since(first)) {
			first = o.FirstSeen
		}
		if named.Name == "" {
			named = o.Pod
		}
	}
	title := "unknown pod"
	if named != (object.Pod{}) {
		title = "pod " + name(named)
	}
	var verdicts []string
	for _, v := range verdictOrder() {
		if counts[v] > 0 {
			verdicts = append(verdicts, fmt.Sprintf("%d %s", counts[v], v))
		}
	}
	since := ""
	if !first.IsZero() {
		since = ", first seen " + ago(p.now, first) + " ago"
	}
	fmt.Fprintf(p, "%s: %s%s\n", p.paint(bold, title), p.paint(verdictColour(pod), strings.Join(verdicts, ", ")), since)
}

func verdictColour(pod []object.Assessment) string {
	if hasVerdict(pod, object.Leftover, object.Candidate, object.Unowned, object.Unknown) {
		return yellow
	}
	return ""
}

// kind prints the objects of one kind. Proofs that differ from the pod's follow below them.
func (p *inspectScreen) kind(objects []object.Assessment, main object.Assessment) {
	for _, same := range groupedBy(objects, proof) {
		lines := foldPaths(same)
		for _, line := range lines[:min(len(lines), maxLinesOfKind)] {
			fmt.Fprintf(p, "  %-*s %s\n", kindWidth, timesText(string(same[0].Kind), len(line.objects)), line.path)
			p.holders(line.objects)
		}
		if more := lines[min(len(lines), maxLinesOfKind):]; len(more) > 0 {
			n := 0
			for _, line := range more {
				n += len(line.objects)
			}
			fmt.Fprintf(p, "  %-*s and more: --wide lists them\n", kindWidth, timesText(string(same[0].Kind), n))
		}
		o := same[0]
		if proof(o) == proof(main) {
			continue
		}
		if o.Verdict != main.Verdict || maskedWhy(o) != maskedWhy(main) {
			p.textLine("    "+strings.ToUpper(string(o.Verdict))+": ", shortWhy(o))
		}
		if differ := witnessesThatDiffer(o, main); len(differ) > 0 {
			p.textLine("    but ", witnessText(differ))
		}
	}
}

// kindWidth is the width of the column with kinds: "cni-attachment ×12".
const kindWidth = 19

func timesText(what string, n int) string {
	if n == 1 {
		return what
	}
	return fmt.Sprintf("%s ×%d", what, n)
}

func (p *inspectScreen) holders(objects []object.Assessment) {
	var lines []string
	for _, o := range objects {
		for _, h := range o.Holders {
			line := holderText(h, shortPod)
			if !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	for _, line := range lines[:min(len(lines), maxHoldersPrinted)] {
		fmt.Fprintf(p, "      %s\n", line)
	}
	if more := len(lines) - maxHoldersPrinted; more > 0 {
		fmt.Fprintf(p, "      and by %d more\n", more)
	}
}

// textLine prints a label and a text below a pod.
func (p *inspectScreen) textLine(label, text string) {
	const indent = 2
	first := indent + len(label)
	fmt.Fprintf(p, "%*s%s%s\n", indent, "", label, p.wrap(text, first, first))
}

// holderText describes a process that holds an object.
func holderText(h object.Holder, name func(object.Pod) string) string {
	of := "of the host"
	if h.Pod != (object.Pod{}) {
		of = "of pod " + name(h.Pod)
	}
	return fmt.Sprintf("held by pid %d %s (%s) %s", h.PID, h.Command, h.How, of)
}

// shortPod names a pod with the first part of its UID, which is enough to tell the pods of one node apart, or with all
// of it if there is no other name.
func shortPod(p object.Pod) string {
	if p.Name != "" {
		p.UID = p.UID[:min(len(p.UID), 8)]
	}
	return podName(p)
}

// mainProof returns the object whose proof most objects of a pod share; among those, the one seen least.
func mainProof(pod []object.Assessment) object.Assessment {
	var most []object.Assessment
	for _, same := range groupedBy(pod, proof) {
		if len(same) > len(most) {
			most = same
		}
	}
	return slices.MinFunc(most, func(a, b object.Assessment) int { return cmp.Compare(a.Passes, b.Passes) })
}

// proof returns a key that is equal for objects printed with the same proof.
func proof(o object.Assessment) string { return fmt.Sprint(o.Verdict, maskedWhy(o), o.Witnesses) }

// seenText matches the parts that differ between objects of a pod that were first seen in different passes.
var seenText = regexp.MustCompile(`seen in \d+( of \d+)? passes( over \S+\b)?|\S+ of \S+ remaining`)

func maskedWhy(o object.Assessment) string { return seenText.ReplaceAllString(o.Why, "seen") }

// shortWhy returns the reason to print below the name of a pod.
func shortWhy(o object.Assessment) string {
	if o.Pod.UID == "" {
		return o.Why
	}
	return strings.ReplaceAll(o.Why, "pod "+o.Pod.UID, "it")
}

func witnessText(answers map[string]object.Answer) string {
	var texts []string
	for _, witness := range slices.Sorted(maps.Keys(answers)) {
		texts = append(texts, witness+" "+string(answers[witness]))
	}
	return strings.Join(texts, "; ")
}

func witnessesThatDiffer(o, main object.Assessment) map[string]object.Answer {
	differ := map[string]object.Answer{}
	for witness, answer := range o.Witnesses {
		if main.Witnesses[witness] != answer {
			differ[witness] = answer
		}
	}
	return differ
}

// folded is one line for objects with the same name.
type folded struct {
	path    string
	objects []object.Assessment
}

// foldPaths prints cgroups that differ only in their hierarchy as one line.
func foldPaths(objects []object.Assessment) []folded {
	var lines []folded
	for _, same := range groupedBy(objects, foldedPath) {
		path := foldedPath(same[0])
		if len(same) == 1 {
			path = same[0].ID
		}
		lines = append(lines, folded{path, same})
	}
	return lines
}

func foldedPath(o object.Assessment) string {
	hierarchy, ok := o.Facts["hierarchy"]
	before, after, found := strings.Cut(o.ID, "/"+hierarchy+"/")
	if o.Kind != object.Cgroup || !ok || !found {
		return o.ID
	}
	return before + "/*/" + after
}
