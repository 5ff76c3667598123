package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const maxLine = 16 << 20 // bytes

// line has the used fields of a line of the audit log.
type line struct {
	Stage, Verb    string
	ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus struct{ Code int }
	RequestObject  json.RawMessage
	ResponseObject json.RawMessage
	StageTimestamp time.Time
}

// game is the state of all pods of a log.
type game struct {
	exclude []string
	pods    map[string]*pod      // by UID
	named   map[string]*pod      // the living ones, by namespace and name
	leaving map[string][]*pod    // deleted pods without a successor, by owner and place
	ready   map[string]time.Time // of nodes: since when
	order   []*pod
	until   time.Time // the time of the last line
}

func newGame(exclude []string) *game {
	return &game{exclude: exclude, pods: map[string]*pod{}, named: map[string]*pod{}, leaving: map[string][]*pod{}, ready: map[string]time.Time{}}
}

// read takes a log. The last line may be cut.
func (g *game) read(r io.Reader) error {
	lines := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(text) > maxLine {
			return fmt.Errorf("line %d: longer than %d bytes", n, maxLine)
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if err := g.take(&l); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
}

func (g *game) take(l *line) error {
	if l.StageTimestamp.After(g.until) {
		g.until = l.StageTimestamp
	}
	if l.Stage != "ResponseComplete" || l.ResponseStatus.Code < 200 || l.ResponseStatus.Code >= 300 {
		return nil
	}
	switch l.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
	default:
		return nil
	}
	switch at := l.StageTimestamp; l.ObjectRef.Resource + "/" + l.ObjectRef.Subresource {
	case "pods/", "pods/status", "pods/resize", "pods/ephemeralcontainers":
		return g.podsOf(l)
	case "pods/binding":
		var b corev1.Binding
		p := g.named[l.ObjectRef.Namespace+"/"+l.ObjectRef.Name]
		if err := json.Unmarshal(l.RequestObject, &b); err != nil || p == nil {
			return err
		}
		g.placed(p, b.Target.Name, at)
	case "pods/eviction":
		if p := g.named[l.ObjectRef.Namespace+"/"+l.ObjectRef.Name]; p != nil {
			g.evicted(p, at)
		}
	case "events/":
		var e corev1.Event
		if l.Verb != "create" {
			return nil // a repetition
		}
		if err := json.Unmarshal(l.RequestObject, &e); err != nil {
			return err
		}
		if p := g.pods[string(e.InvolvedObject.UID)]; p != nil {
			p.event(&e, at)
		}
	case "nodes/", "nodes/status":
		return g.node(l)
	}
	return nil
}

func (g *game) podsOf(l *line) error {
	var list corev1.PodList
	if l.Verb != "deletecollection" {
		list.Items = make([]corev1.Pod, 1)
		if err := json.Unmarshal(l.ResponseObject, &list.Items[0]); err != nil {
			return err
		}
	} else if err := json.Unmarshal(l.ResponseObject, &list); err != nil {
		return err
	}
	for i := range list.Items {
		if o := &list.Items[i]; o.UID != "" {
			g.pod(o, strings.HasPrefix(l.Verb, "delete"), l.ObjectRef.Subresource == "status", l.StageTimestamp)
		}
	}
	return nil
}

func (g *game) node(l *line) error {
	var n corev1.Node
	if len(l.ResponseObject) == 0 {
		return nil
	}
	if err := json.Unmarshal(l.ResponseObject, &n); err != nil {
		return err
	}
	delete(g.ready, n.Name)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && l.Verb != "delete" {
			g.ready[n.Name] = c.LastTransitionTime.Time
		}
	}
	return nil
}
