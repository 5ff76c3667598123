package fleet

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Kind is the purpose of a claim. Each has its own budget.
type Kind string

// The kinds.
const (
	Slot    Kind = "slot"    // a disruptive action
	Isolate Kind = "isolate" // a taint that keeps pods away
)

// The labels and the annotation of a claim. The admission policy compares the first with the name.
const (
	labelKind        = "nodeagent.github.io/claim"
	labelPool        = "nodeagent.github.io/pool"
	annotationAction = "nodeagent.github.io/action"
	maxAction        = 128 // bytes
)

// names returns the possible names of the claims of a node. The kind comes first, so that no node's name can be part of
// another's. An isolation is renewed by a second claim, made while the first one still counts.
func (k Kind) names(node string) []string {
	if k == Isolate {
		return []string{"isolate." + node, "isolate-next." + node}
	}
	return []string{string(k) + "." + node}
}

// selector selects the claims of a kind in the pool of this node.
func (f *Fleet) selector(kind Kind) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return labels.Set{labelKind: string(kind), labelPool: f.pool}.String()
}

// lease returns a claim as it is created. It is deleted with the Node, since no other agent may delete it.
func (f *Fleet) lease(kind Kind, name, action string, duration time.Duration) *coordinationv1.Lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	seconds := int32(min(duration, MaxFor) / time.Second)
	holder := f.node
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.config.Namespace, Name: name,
			Labels:      map[string]string{labelKind: string(kind), labelPool: f.pool},
			Annotations: map[string]string{annotationAction: strings.ToValidUTF8(finding.Clip(action, maxAction), "")},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: f.node,
				UID: types.UID(f.uid)}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds},
	}
}

// claimOf reads a claim. One with missing parts was not made by an agent: it counts for the longest time of a claim.
func claimOf(lease *coordinationv1.Lease) (Claim, error) {
	version, err := strconv.ParseUint(lease.ResourceVersion, 10, 64)
	if err != nil {
		return Claim{}, fmt.Errorf("claim %s: resourceVersion %q is no number: claims have no order", lease.Name,
			lease.ResourceVersion)
	}
	c := Claim{Name: lease.Name, UID: string(lease.UID), Node: lease.Name, Action: lease.Annotations[annotationAction],
		Created: lease.CreationTimestamp.Time, For: MaxFor, Version: version}
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		c.Node = *holder
	}
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
		c.For = min(time.Duration(*seconds)*time.Second, MaxFor)
	}
	return c, nil
}

func contains(err error, text string) bool { return strings.Contains(err.Error(), text) }
