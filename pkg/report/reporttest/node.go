package reporttest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	if err := Decode(patch, &p); err != nil {
		return nil, err
	}
	conditions = slices.Clone(conditions)
	for _, raw := range p.Status.Conditions {
		var e struct {
			Patch string `json:"$patch"`
			corev1.NodeCondition
		}
		if err := Decode(raw, &e); err != nil {
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
