package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// explanation is the whole reasoning about one object. Its JSON form is a contract.
type explanation struct {
	Object   object.Assessment            `json:"object"`
	Asked    map[string]finding.Timestamp `json:"asked"`               // when each witness was asked
	Gates    []object.Gate                `json:"gates"`               // that apply to the object
	Sighting object.Sighting              `json:"sighting"`            // after this pass
	Running  object.Sighting              `json:"runningPod,omitzero"` // of its pod, if a container of it runs
	Settings object.Settings              `json:"-"`
	Missing  []string                     `json:"missing"`               // to a proof
	Release  string                       `json:"release,omitempty"`     // the action of a release
	Not      string                       `json:"notReleased,omitempty"` // why a release would not act
}

// explain prints everything known about one object.
func (i inspection) explain(w io.Writer, o *options, name string) error {
	found, err := findObject(i.report.Objects, name)
	if err != nil {
		return err
	}
	e := explanationOf(i, found)
	e.Object.Holders = listed(e.Object.Holders)
	return o.answer(w, e, func(w io.Writer) error {
		_, err := io.WriteString(w, explainText(screenOf(w), i.report.At, bundle.Printable(e)))
		return err
	}, inspectExit(object.Report{Objects: []object.Assessment{found}}))
}

// maxMatches bounds how many objects are listed if a name is not unique.
const maxMatches = 20

// findObject returns the one object of a name: KIND/ID, or a part of an ID, of one kind or of any.
func findObject(objects []object.Assessment, name string) (object.Assessment, error) {
	kind, part := object.Kind(""), name
	if before, after, ok := strings.Cut(name, "/"); ok && slices.Contains(kinds.Kinds(), object.Kind(before)) {
		kind, part = object.Kind(before), after
	}
	var exact, found []object.Assessment
	for _, o := range objects {
		switch {
		case kind != "" && o.Kind != kind:
		case o.ID == part:
			exact = append(exact, o)
		case part != "" && strings.Contains(o.ID, part):
			found = append(found, o)
		}
	}
	if len(exact) > 0 {
		found = exact
	}
	switch len(found) {
	case 0:
		return object.Assessment{}, fmt.Errorf("no object has the name %q, or an ID that contains it", name)
	case 1:
		return found[0], nil
	}
	names := make([]string, 0, maxMatches)
	for _, o := range found[:min(len(found), maxMatches)] {
		names = append(names, fmt.Sprintf("  %s/%s", o.Kind, bundle.Printable(o.ID)))
	}
	if more := len(found) - maxMatches; more > 0 {
		names = append(names, fmt.Sprintf("  and %d more", more))
	}
	return object.Assessment{}, fmt.Errorf("%d objects match %q; name one of them:\n%s", len(found), name,
		strings.Join(names, "\n"))
}

func explanationOf(i inspection, o object.Assessment) explanation {
	e := explanation{Object: o, Gates: []object.Gate{}, Missing: []string{},
		Asked: map[string]finding.Timestamp{}}
	for _, g := range i.report.Gates {
		if object.GateApplies(g, o.Kind) {
			e.Gates = append(e.Gates, g)
		}
	}
	if i.bundle != nil {
		evidence := i.bundle.Evidence
		_, next := evidence.Evaluate()
		e.Sighting, e.Settings = next.Sighting(o.Object), evidence.Settings
		if o.Running {
			e.Running = next.OfRunningPod(o.Pod.UID)
		}
		t := evidence.Inventory
		for witness, response := range map[string]witness.Response{object.Apiserver: t.Cluster.Response,
			object.Kubelet: t.Kubelet.Response, object.Runtime: t.Runtime.Response,
			object.Containerd: t.Containerd.Response} {
			if response.Asked {
				e.Asked[witness] = response.At
			}
		}
	}
	if _, missing, ok := strings.Cut(o.Why, "not yet proven: "); ok {
		e.Missing = strings.Split(missing, "; ")
	}
	e.Release, e.Not = releaseOf(i, o)
	return e
}

// releaseOf returns the action that a release would take on an object, and why it would not.
func releaseOf(i inspection, o object.Assessment) (does, not string) {
	if o.Verdict != object.Leftover {
		return "", fmt.Sprintf("only leftovers are released, and this object is %s", o.Verdict)
	}
	steps := release.Plan(i.report, release.Policy{Settings: i.settings}, i.report.At)
	for _, s := range steps {
		if s.Kind == o.Kind && s.ID == o.ID {
			return s.Description, strings.Join(s.Guards.Closed(), "; ")
		}
	}
	return "", "it is in no plan"
}

func explainText(s screen, now finding.Timestamp, e explanation) string {
	p := &inspectScreen{screen: s, now: now}
	o := e.Object
	fmt.Fprintf(p, "%s\n", p.paint(bold, fmt.Sprintf("%s %s", o.Kind, o.ID)))
	if o.Pod != (object.Pod{}) {
		p.textLine("of pod ", podName(o.Pod))
	}
	p.textLine(strings.ToUpper(string(o.Verdict))+": ", o.Why)
	p.pairs("identity", o.Identity.Values())
	p.pairs("facts", o.Facts)
	p.pairs("belongs to", map[string]string{"sandbox": o.SandboxID, "container": o.ContainerID})
	if len(o.Holders) > 0 {
		p.title("holders")
		for _, h := range o.Holders {
			p.textLine("", holderText(h, podName))
		}
	}
	p.witnesses(e)
	p.title("gates")
	for _, g := range e.Gates {
		p.textLine(map[bool]string{true: "open    ", false: "CLOSED  "}[g.Open], g.Name+": "+g.Why)
	}
	p.sightings(e)
	if len(e.Missing) > 0 {
		p.title("missing")
		for _, m := range e.Missing {
			p.textLine("", m)
		}
	}
	p.title("release")
	if e.Release != "" {
		p.textLine("would ", e.Release)
	}
	if e.Not != "" {
		p.textLine("not done: ", e.Not)
	}
	if why := blocker([]object.Assessment{o}); why != "" {
		p.textLine("blocked: ", why)
	}
	return p.String()
}

func (p *inspectScreen) title(text string) { fmt.Fprintf(p, "%s\n", p.paint(bold, text)) }

// pairs prints the known facts of a list.
func (p *inspectScreen) pairs(title string, pairs map[string]string) {
	begun := false
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		if pairs[name] == "" {
			continue
		}
		if !begun {
			p.title(title)
			begun = true
		}
		fmt.Fprintf(p, "  %-*s %s\n", kindWidth, name, pairs[name])
	}
}

// witnesses prints the answer of each witness about the object, and when it was asked.
func (p *inspectScreen) witnesses(e explanation) {
	p.title("witnesses")
	for _, witness := range slices.Sorted(maps.Keys(e.Object.Witnesses)) {
		text := string(e.Object.Witnesses[witness])
		if at, ok := e.Asked[witness]; ok {
			text += p.asked(at)
		}
		p.textLine(fmt.Sprintf("%-*s ", kindWidth, witness), text)
	}
	if named := e.Running.Named; !named.At.IsZero() {
		p.textLine(fmt.Sprintf("%-*s ", kindWidth, "apiserver, by name"), named.Why+p.asked(named.At))
	}
}

// asked returns when a witness was asked: within the pass, or before it began.
func (p *inspectScreen) asked(at finding.Timestamp) string {
	text := " (asked at " + clockText(at)
	if before := p.now.Since(at); before >= 0 && (at.Boot != p.now.Boot || at.SinceBoot < p.now.SinceBoot) {
		text += ", " + ago(p.now, at) + " before this pass"
	}
	return text + ")"
}

func clockText(t finding.Timestamp) string { return t.Wall.UTC().Format("2006-01-02 15:04:05Z") }

// sightings prints in which passes the object was seen while no witness knew it.
func (p *inspectScreen) sightings(e explanation) {
	p.title("sightings")
	s := e.Sighting
	if s.First.IsZero() || s.Passes == 0 {
		p.textLine("", "none that counts: in a pass that counts, the agent trusts every witness, and none knows the object")
		return
	}
	p.textLine("first ", fmt.Sprintf("%s, %s ago", clockText(s.First), ago(p.now, s.First)))
	p.textLine("passes ", fmt.Sprintf("%d; needed: %d that span %s", s.Passes, e.Settings.Passes, e.Settings.Grace))
	p.textLine("denied by the apiserver ", denialText(s))
	if e.Object.Running {
		p.textLine("its pod is running, and was denied ", fmt.Sprintf("%s; needed: twice, at least %s apart",
			denialText(e.Running), e.Settings.RunningSpacing))
	}
}

func denialText(s object.Sighting) string {
	denials := make([]string, 0, len(s.Denials))
	for _, at := range s.Denials {
		denials = append(denials, clockText(at))
	}
	return cmp.Or(strings.Join(denials, ", and last "), "never")
}
