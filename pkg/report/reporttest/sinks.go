package reporttest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is a Node object that takes strategic merge patches of its conditions like a real apiserver: the list is merged
// by type, a field that the patch does not name keeps its value, "$patch: delete" removes, and anything else is a bad
// request.
type Node struct {
	Fault

	mu         sync.Mutex // guards all below
	conditions []corev1.NodeCondition
	patches    []string
	reads      int
}

// NewNode returns a node that shows conditions.
func NewNode(conditions ...corev1.NodeCondition) *Node { return &Node{conditions: conditions} }

// Set sets the conditions, like another writer.
func (n *Node) Set(conditions ...corev1.NodeCondition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conditions = conditions
}

// NodeConditions implements condition.Node.
func (n *Node) NodeConditions(ctx context.Context) (conditions []corev1.NodeCondition, err error) {
	err = n.Do(ctx, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.reads++
		conditions = slices.Clone(n.conditions)
		return nil
	})
	return conditions, err
}

// PatchNodeStatus implements condition.Node.
func (n *Node) PatchNodeStatus(ctx context.Context, patch []byte) error {
	return n.Do(ctx, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		conditions, err := merge(n.conditions, patch)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		n.conditions, n.patches = conditions, append(n.patches, string(patch))
		return nil
	})
}

func merge(conditions []corev1.NodeCondition, patch []byte) ([]corev1.NodeCondition, error) {
	var p struct {
		Status struct {
			Conditions []json.RawMessage `json:"conditions"`
		} `json:"status"`
	}
	if err := strictly(patch, &p); err != nil {
		return nil, err
	}
	conditions = slices.Clone(conditions)
	for _, raw := range p.Status.Conditions {
		var e struct {
			Patch string `json:"$patch"`
			corev1.NodeCondition
		}
		if err := strictly(raw, &e); err != nil {
			return nil, err
		}
		i := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == e.Type })
		switch {
		case e.Type == "" || e.Patch != "" && e.Patch != "delete":
			return nil, fmt.Errorf("malformed element %s", raw)
		case e.Patch == "delete":
			conditions = slices.DeleteFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == e.Type })
		case i < 0:
			conditions = append(conditions, e.NodeCondition)
		default:
			if err := json.Unmarshal(raw, &conditions[i]); err != nil {
				return nil, err
			}
		}
	}
	return conditions, nil
}

func strictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// Shown returns the condition that the node shows, nil if there is none of this type.
func (n *Node) Shown(name string) *corev1.NodeCondition {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conditions {
		if string(c.Type) == name {
			return &c
		}
	}
	return nil
}

// Patches returns the patches that were applied.
func (n *Node) Patches() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.patches)
}

// Reads returns how often the node was read.
func (n *Node) Reads() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reads
}

// Events is a namespace with events.
type Events struct {
	Fault

	mu     sync.Mutex // guards events
	events []*corev1.Event
}

// CreateEvent implements event.Sink.
func (e *Events) CreateEvent(ctx context.Context, event *corev1.Event) error {
	return e.Do(ctx, func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, other := range e.events {
			if other.Name == event.Name {
				return apierrors.NewAlreadyExists(corev1.Resource("events"), event.Name)
			}
		}
		e.events = append(e.events, event.DeepCopy())
		return nil
	})
}

// Created returns the events in the order in which they were created.
func (e *Events) Created() []*corev1.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.events)
}

// Lines returns the events for comparison: type, reason, count and message.
func (e *Events) Lines() []string {
	var lines []string
	for _, event := range e.Created() {
		lines = append(lines, fmt.Sprintf("%s %s %d %s", event.Type, event.Reason, event.Count, event.Message))
	}
	return lines
}

// Receiver answers HTTP requests with a handler, without a network.
type Receiver struct {
	Fault
	Handler http.Handler
}

// RoundTrip implements http.RoundTripper.
func (r *Receiver) RoundTrip(request *http.Request) (response *http.Response, err error) {
	err = r.Do(request.Context(), func() error {
		recorder := httptest.NewRecorder()
		r.Handler.ServeHTTP(recorder, request)
		response = recorder.Result()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// Store is a store in memory that can be made to fail or to hang.
type Store struct {
	Fault

	mu     sync.Mutex // guards values
	values map[string][]byte
}

// NewStore returns an empty store.
func NewStore() *Store { return &Store{values: map[string][]byte{}} }

// Put stores one value.
func (s *Store) Put(key string, value []byte) error { return s.PutAll(map[string][]byte{key: value}) }

// Delete implements report.Store.
func (s *Store) Delete(key string) error { return s.Put(key, nil) }

// PutAll implements report.Store.
func (s *Store) PutAll(values map[string][]byte) error {
	return s.Do(context.Background(), func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for key, value := range values {
			if value == nil {
				delete(s.values, key)
			} else {
				s.values[key] = slices.Clone(value)
			}
		}
		return nil
	})
}

// ForEach implements report.Store.
func (s *Store) ForEach(f func(key string, value []byte) error) error {
	s.mu.Lock()
	values := maps.Clone(s.values)
	s.mu.Unlock()
	for key, value := range values {
		if err := f(key, value); err != nil {
			return err
		}
	}
	return nil
}

// Len returns how many values there are.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.values)
}

// Taints is a Node object that takes JSON merge patches of its taints like a real apiserver: the list is replaced as a
// whole, and the patch is refused with a conflict if the Node has changed since it was read.
type Taints struct {
	Fault

	Unconfined bool // no admission policy refuses a taint of another key

	mu      sync.Mutex // guards all below
	refused bool       // the identity may write no taint, as kubelet's own
	node    corev1.Node
	version int
	patches int
	rivals  int // how many more writes of another writer come right before ours
}

// Refuse lets the identity write no taint from now on, as kubelet's own.
func (n *Taints) Refuse() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused = true
}

// NewTaints returns a node with taints.
func NewTaints(taints ...corev1.Taint) *Taints {
	return &Taints{node: corev1.Node{Spec: corev1.NodeSpec{Taints: taints}}}
}

// Change changes the node, like another writer.
func (n *Taints) Change(change func(*corev1.Node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.node)
	n.version++
}

// Rival adds a taint right before each of the next writes, like another writer.
func (n *Taints) Rival(writes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rivals = writes
}

// GetNode implements taint.Node.
func (n *Taints) GetNode(ctx context.Context) (node *corev1.Node, err error) {
	err = n.Do(ctx, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		node = n.node.DeepCopy()
		node.ResourceVersion = fmt.Sprint(n.version)
		return nil
	})
	return node, err
}

// PatchNode implements taint.Node.
func (n *Taints) PatchNode(ctx context.Context, patch []byte, dryRun bool) error {
	return n.Do(ctx, func() error {
		var p struct {
			Metadata struct{ ResourceVersion string }
			Spec     struct{ Taints []corev1.Taint }
		}
		if err := strictly(patch, &p); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.refused {
			return fmt.Errorf("not allowed to modify taints: %w", Status(http.StatusForbidden, metav1.StatusReasonForbidden, 0))
		}
		others := slices.ContainsFunc(p.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "probe.") })
		if dryRun && (n.Unconfined || !others) {
			return nil
		}
		if dryRun {
			return fmt.Errorf("ValidatingAdmissionPolicy: %w", Status(http.StatusForbidden, metav1.StatusReasonForbidden, 0))
		}
		if n.rivals > 0 {
			n.rivals--
			n.version++
			n.node.Spec.Taints = append(n.node.Spec.Taints, corev1.Taint{Key: fmt.Sprint("rival-", n.version)})
		}
		if p.Metadata.ResourceVersion != fmt.Sprint(n.version) {
			return Status(http.StatusConflict, metav1.StatusReasonConflict, 0)
		}
		n.node.Spec.Taints, n.version, n.patches = p.Spec.Taints, n.version+1, n.patches+1
		return nil
	})
}

// Shown returns the taints, and how many writes of the agent there were.
func (n *Taints) Shown() (taints []string, patches int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.node.Spec.Taints {
		taints = append(taints, t.ToString())
	}
	return taints, n.patches
}
