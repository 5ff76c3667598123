package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// printPlan prints the plan and, if it is not empty, the next step.
func (c cleaning) printPlan(steps []release.Step, next string) error {
	var ofNode []release.Guard
	if len(steps) > 0 {
		ofNode = steps[0].Guards.Node
	}
	if c.json() {
		return printJSON(c.out, map[string]any{"steps": listed(steps), "guards": listed(ofNode),
			"gates": c.report.Gates, "errors": c.report.Errors})
	}
	p := &planScreen{screen: screenOf(c.out), wide: c.wide}
	if len(steps) > 0 {
		p.guards("", "guards of the node", bundle.Printable(ofNode))
	}
	for _, pod := range groupedBy(bundle.Printable(steps), func(s release.Step) string { return s.Group }) {
		p.pod(pod)
	}
	printUndecided(&p.Builder, p.screen, c.report)
	if len(steps) > 0 {
		p.WriteString(next)
	} else {
		p.WriteString("Nothing is proven to be a leftover.\n")
	}
	_, err := io.WriteString(c.out, p.String())
	return err
}

// planScreen prints a plan as a tree: the node, its pods, their kinds of objects.
type planScreen struct {
	screen
	strings.Builder
	wide bool // also open guards
}

// pod prints the steps of a pod. The answers of guards that apply to all of them are printed once, below the pod.
func (p *planScreen) pod(steps []release.Step) {
	fmt.Fprintf(p, "pod %s\n", shortPod(steps[0].Pod))
	shared := ownAnswers(steps[0])
	for _, s := range steps[1:] {
		own := ownAnswers(s)
		shared = slices.DeleteFunc(shared, func(g release.Guard) bool { return !slices.Contains(own, g) })
	}
	for _, same := range groupedBy(steps, sameAction) {
		fmt.Fprintf(p, "  %s\n", same[0].Kind)
		objects := make([]object.Assessment, 0, len(same))
		for _, s := range same {
			objects = append(objects, s.Object)
		}
		for _, line := range foldPaths(objects) {
			fmt.Fprintf(p, "      %s\n", timesText(line.path, len(line.objects)))
		}
		if does := withoutID(same[0], same[0].Description); does != "" {
			fmt.Fprintf(p, "      → %s\n", does)
		}
		own := slices.DeleteFunc(ownAnswers(same[0]), func(g release.Guard) bool { return slices.Contains(shared, g) })
		p.answers("      ", own)
	}
	p.guards("  ", "guards", slices.Concat(shared, steps[0].Guards.Pod))
}

// sameAction returns a key that is equal for steps that differ only in the name of their object.
func sameAction(s release.Step) string {
	return fmt.Sprint(s.Kind, withoutID(s, s.Description), ownAnswers(s))
}

// ownAnswers returns the answers of guards about a single object, without its name, so that equal ones fold.
func ownAnswers(s release.Step) []release.Guard {
	guards := slices.Clone(s.Guards.Object)
	for i := range guards {
		guards[i].Why = withoutID(s, strings.ReplaceAll(guards[i].Why, " for kind "+string(s.Kind), ""))
	}
	return guards
}

// guards prints the number of answers, and those to be shown.
func (p *planScreen) guards(indent, title string, all []release.Guard) {
	open := 0
	for _, g := range all {
		if g.Open {
			open++
		}
	}
	fmt.Fprintf(p, "%s%s: %d open", indent, title, open)
	if closed := len(all) - open; closed > 0 {
		fmt.Fprintf(p, ", %d closed", closed)
	}
	p.WriteString("\n")
	p.answers(indent+"    ", all)
}

// answers prints a line for each closed guard, and with --wide for open ones too.
func (p *planScreen) answers(indent string, guards []release.Guard) {
	for _, g := range guards {
		state := "open    "
		switch {
		case !g.Open:
			state = p.paint(yellow, "closed") + "  "
		case !p.wide:
			continue
		}
		text := g.Name + ": " + strings.TrimPrefix(strings.TrimPrefix(g.Why, g.Name+" is closed: "), g.Name+": ")
		at := len(indent) + len("closed  ")
		fmt.Fprintf(p, "%s%s%s\n", indent, state, p.wrap(strings.TrimSuffix(text, ": "), at, at))
	}
}
