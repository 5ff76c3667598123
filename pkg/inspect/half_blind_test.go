package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
	"github.com/nodeagent/nodeagent/test/need"
)

// Observed on a real node: kubelet restarts while its own LIST is refused, and the apiserver's list lacks some living
// pods. In all variants all running pods are live, for an hour and more, and after it.
func TestHalfBlindWitnesses(t *testing.T) {
	need.Nothing(t)
	amnesia := func(n *fullNode) {
		maps.DeleteFunc(n.kubelet, func(uid string, _ corev1.Pod) bool { return uid != staticUID })
	}
	old := func(n *fullNode) { n.metric, n.version = nil, "v1.26.9" } // does not show whether its sources are ready
	tests := map[string]func(*fullNode){
		"kubelet has static pods only, the list lacks two": func(n *fullNode) {
			amnesia(n)
			n.metric = nil
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
		},
		"the same, by an old kubelet": func(n *fullNode) {
			amnesia(n)
			old(n)
			forget(n.list, inspecttest.UIDOf(3),
				inspecttest.UIDOf(7))
		},
		"the same, and names are forbidden": func(n *fullNode) {
			amnesia(n)
			old(n)
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.nameErr = forbidden
		},
		"the same, and names do not answer": func(n *fullNode) {
			amnesia(n)
			old(n)
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.nameErr = context.DeadlineExceeded
		},
		"the same, and even the names are gone": func(n *fullNode) {
			amnesia(n)
			old(n)
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.names = nil
		},
		"the same, and nothing runs at this moment": func(n *fullNode) {
			amnesia(n)
			old(n)
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.names, n.running = nil, nil
		},
		"the list lacks one": func(n *fullNode) { amnesia(n); old(n); forget(n.list, inspecttest.UIDOf(3)) },
		"only the mirror is in the list": func(n *fullNode) {
			amnesia(n)
			old(n)
			maps.DeleteFunc(n.list, func(_ string, pod corev1.Pod) bool {
				return pod.Annotations[witness.MirrorAnnotation] == ""
			})
			n.names = nil
		},
		"only the mirror is in the list, and kubelet is sure": func(n *fullNode) {
			amnesia(n)
			maps.DeleteFunc(n.list, func(_ string, pod corev1.Pod) bool {
				return pod.Annotations[witness.MirrorAnnotation] == ""
			})
			n.names = nil
		},
		"kubelet has eight, the list nine": func(n *fullNode) {
			forget(n.kubelet, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			forget(n.list, inspecttest.UIDOf(3))
			n.names = nil
		},
		"both lack the same two, which answer to their names": func(n *fullNode) {
			forget(n.kubelet, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
		},
		"both lack the same two, and to get pods is forbidden": func(n *fullNode) {
			forget(n.kubelet, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.nameErr = forbidden
		},
		"both lack the same two, and everything by name is forbidden": func(n *fullNode) {
			forget(n.kubelet, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.nameErr, n.namedErr = forbidden, forbidden
		},
		"both lack the same two, and the list by name hangs": func(n *fullNode) {
			forget(n.kubelet, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.nameErr, n.namedErr = forbidden, context.DeadlineExceeded
		},
		"both lack the same two, and names hang": func(n *fullNode) {
			forget(n.kubelet, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.nameErr = context.DeadlineExceeded
		},
		"both lack the same two, and nobody can be asked by name": func(n *fullNode) {
			forget(n.kubelet, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.host.Cluster.Pod, n.host.Cluster.PodsNamed = nil, nil
		},
		"both lack the same two, whose names nobody knows": func(n *fullNode) {
			n.delete(inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.sandboxes[inspecttest.UIDOf(3)].Metadata.Name, n.sandboxes[inspecttest.UIDOf(7)].Metadata.Namespace = "", ""
		},
		"both lack the same two, which crash and start no more": func(n *fullNode) {
			forget(n.kubelet, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			forget(n.list, inspecttest.UIDOf(3), inspecttest.UIDOf(7))
			n.pass()
			n.running[inspecttest.UIDOf(3)], n.running[inspecttest.UIDOf(7)] = false, false
		},
	}
	for name, bend := range tests {
		for _, mode := range [][2]bool{{false, false}, {true, false}, {true, true}} {
			restarts, refused := mode[0], mode[1]
			t.Run(fmt.Sprintf("%s, restarts %v, refused %v", name, restarts, refused), func(t *testing.T) {
				n := newFullNode(t)
				if refused {
					n.refuse()
				}
				n.allLive(n.pass())
				kubelet, list, names := maps.Clone(n.kubelet), maps.Clone(n.list), maps.Clone(n.names)
				bend(n)
				n.restarts = restarts
				n.during(90*time.Minute, n.noLeftover)
				n.kubelet, n.list, n.names, n.nameErr, n.namedErr = kubelet, list, names, nil, nil
				if refused { // the apiserver is not asked again at once
					n.during(n.settings.Grace/2, n.noLeftover)
				}
				n.during(15*time.Minute, n.allLive)
				if len(n.history) != 0 {
					t.Errorf("remembered: %v", n.history)
				}
			})
		}
	}
}

// A saved state from before running pods were recorded is readable, and proves no facts about them.
func TestOldHistoryIsReadable(t *testing.T) {
	n := newFullNode(t)
	n.delete(inspecttest.UIDOf(3))
	data := fmt.Sprintf(
		`{"sandbox/%[1]s":{"identity":{"id":"%[1]s","created":"0"},"first":%[2]s,"last":%[2]s,"passes":9,"denials":[%[2]s]}}`,
		n.sandboxes[inspecttest.UIDOf(3)].Id, `{"wall":"2026-03-01T10:00:00Z","boot":"`+hosttest.BootID+`","up":3600000000000}`)
	if err := json.Unmarshal([]byte(data), &n.history); err != nil {
		t.Fatal(err)
	}
	if verdict, why := n.verdict(n.pass(), inspecttest.UIDOf(3)); verdict != object.Candidate || !strings.Contains(why,
		"10m0s apart") {
		t.Errorf("%s: %s", verdict, why)
	}
}

// Passes in which a witness cannot be trusted do not count: once kubelet can be trusted again, the proof restarts.
func TestUntrustedPassesDoNotCount(t *testing.T) {
	n := newFullNode(t)
	n.delete(inspecttest.UIDOf(3))
	n.running[inspecttest.UIDOf(3)] = false
	known := maps.Clone(n.kubelet)
	maps.DeleteFunc(n.kubelet, func(uid string, _ corev1.Pod) bool { return uid != staticUID })
	n.during(time.Hour, func(report object.Report) {
		if verdict, why := n.verdict(report, inspecttest.UIDOf(3)); verdict != object.Unknown {
			t.Fatalf("%s: %s", verdict, why)
		}
	})
	n.kubelet = known
	n.during(9*time.Minute, func(report object.Report) {
		if verdict, why := n.verdict(report, inspecttest.UIDOf(3)); verdict != object.Candidate {
			t.Fatalf("%s: %s", verdict, why)
		}
	})
	n.after(time.Minute)
	if verdict, why := n.verdict(n.pass(), inspecttest.UIDOf(3)); verdict != object.Leftover {
		t.Errorf("%s: %s", verdict, why)
	}
}

// A list is no proof about a kubelet that was started after it, nor while kubelet lacks most of it: a new list is made.
func TestListIsComparedWithThisKubelet(t *testing.T) {
	for name, change := range map[string]func(n *fullNode){
		"started again": func(n *fullNode) {
			start := uint64((n.now.SinceBoot + 30*time.Second).Seconds()) * 100
			n.host.Kubelet.Process = func() (host.Process, error) {
				return host.Process{PID: 901, StartTime: start}, nil
			}
		},
		"its process is not found": func(n *fullNode) {
			n.host.Kubelet.Process = func() (host.Process, error) { return host.Process{}, errors.New("none") }
		},
		"lacks most": func(n *fullNode) {
			for i := range 6 {
				forget(n.kubelet, inspecttest.UIDOf(i))
				delete(n.sandboxes, inspecttest.UIDOf(i))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			n.delete(inspecttest.UIDOf(9))
			n.running[inspecttest.UIDOf(9)] = false
			n.pass()
			n.after(time.Minute)
			n.pass() // the second denial
			before := n.lists
			n.after(time.Minute)
			if n.pass(); n.lists != before {
				t.Fatalf("%d lists although nothing is new", n.lists-before)
			}
			change(n)
			n.after(time.Minute)
			if n.pass(); n.lists != before+1 {
				t.Errorf("%d lists", n.lists-before)
			}
		})
	}
}
