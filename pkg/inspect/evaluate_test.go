package inspect

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	living  = "11111111-1111-4111-8111-111111111111"
	dead    = "22222222-2222-4222-8222-222222222222"
	other   = "33333333-3333-4333-8333-333333333333"
	static  = "44444444444444444444444444444444"
	sandbox = "5555555555555555555555555555555555555555555555555555555555555555"
	boot    = "boot-1"
)

// at is a timestamp at this time after the start of the machine.
func at(d time.Duration) finding.Timestamp {
	return finding.Timestamp{Wall: time.Unix(1_700_000_000, 0).Add(d).UTC(), Boot: boot, SinceBoot: d}
}

// hour is the time of the evaluations.
var hour = at(time.Hour)

func pod(uid, name string) PodFact {
	return PodFact{Pod: Pod{UID: uid, Namespace: "default", Name: name}, Phase: "Running"}
}

// healthy is a node with one live pod, on which all witnesses answer and all gates are open.
func healthy() Inventory {
	answered := Response{Asked: true, At: hour}
	return Inventory{
		Runtime: RuntimeInventory{
			Response: answered, Name: "containerd", Age: time.Hour,
			Sandboxes: map[string]SandboxFact{}, Pods: map[string]SandboxFact{}, Containers: map[string]string{},
			Grace: map[string]time.Duration{}, Ready: Condition{OK: true}, NetReady: Condition{OK: true},
		},
		Containerd: ContainerdInventory{Response: answered, Known: map[string]string{}, Pods: map[string]bool{}},
		Kubelet: KubeletInventory{Response: answered, Pods: map[string]PodFact{living: pod(living, "web")},
			Age: time.Hour},
		Cluster: ClusterInventory{
			Response: answered, Pods: map[string]PodFact{living: pod(living, "web")},
			Comparison: Comparison{Shared: 1, Wanted: 1, Listed: 1},
			Node:       "n", Machine: "m", Boot: "b", LocalMachine: "m", LocalBoot: "b",
		},
		Static: StaticPodInventory{Asked: true},
	}
}

// seenLong is a history in which o was seen in five passes over 20 minutes, and denied twice by the apiserver.
func seenLong(objects ...Object) History {
	history := make(History)
	for i := range objects {
		history[key(&objects[i])] = Sighting{
			Identity: maps.Clone(objects[i].Identity), First: at(40 * time.Minute), Last: at(59 * time.Minute),
			Passes:  5,
			Pod:     objects[i].Pod,
			Denials: []finding.Timestamp{at(40 * time.Minute), at(50 * time.Minute)},
		}
	}
	return history
}

func object(kind Kind, uid string) Object {
	o := Object{Kind: kind, ID: "x", Pod: Pod{UID: uid}, Identity: Identity{"inode": "7"}}
	if kind.networked() || kind.namedByID() || slices.Contains([]Kind{Sandbox, Lease, SystemdUnit, LogLink}, kind) {
		o.SandboxID = sandbox
	}
	return o
}

func settings() Settings {
	s := DefaultSettings()
	s.HostNamespaces = true
	return s
}

func TestEvaluateRules(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		name   string
		object Object
		bend   func(*Inventory, History, *Settings)
		want   Verdict
		why    string // part of it
	}{
		{"all deny", object(PodDirectory, dead), nil, Leftover, "seen in 6 passes over 20m0s"},
		{"every kind: sandbox", object(Sandbox, dead), nil, Leftover, ""},
		{"every kind: container", object(Container, dead), nil, Leftover, ""},
		{"every kind: process", object(Process, dead), nil, Leftover, ""},
		{"every kind: attachment", object(CNIAttachment, dead), nil, Leftover, ""},
		{"every kind: netns", object(Netns, dead), nil, Leftover, ""},
		{"every kind: link", object(Link, dead), nil, Leftover, ""},
		{"every kind: mount", object(Mount, dead), nil, Leftover, ""},
		{"every kind: cgroup", object(Cgroup, dead), nil, Leftover, ""},

		{"kubelet knows", object(Cgroup, living), nil, Live, "kubelet has its pod"},
		{"only the apiserver knows, in a final phase", object(PodDirectory, dead),
			func(t *Inventory, _ History, _ *Settings) {
				t.Cluster.Pods[dead] = PodFact{Pod: Pod{UID: dead}, Phase: "Succeeded"}
			}, Live, "the apiserver has its pod"},
		{"an old attempt of a living pod", object(Sandbox, living), func(t *Inventory, _ History, _ *Settings) {
			t.Runtime.Sandboxes[sandbox] = SandboxFact{ID: sandbox, State: "NOTREADY"}
		}, Live, "kubelet has its pod"},
		{"no pod", object(Netns, ""), nil, Unowned, "nothing on the node names the pod"},
		{"doubt", func() Object {
			o := object(Netns, dead)
			o.Doubt = "who lives there"
			return o
		}(), nil, Unknown, "who lives there"},
		{"foreign", func() Object {
			o := object(Netns, dead)
			o.Foreign = "created by hand"
			return o
		}(), nil, Foreign, "created by hand"},

		{"its sandbox is a leftover: that the runtime knows it changes nothing", object(Sandbox, dead),
			func(t *Inventory, _ History, _ *Settings) {
				t.Runtime.Sandboxes[sandbox] = SandboxFact{ID: sandbox, State: "READY"}
			}, Leftover, ""},
		{"network of a sandbox that the runtime knows", object(Netns, dead),
			func(t *Inventory, _ History, _ *Settings) {
				t.Runtime.Sandboxes[sandbox] = SandboxFact{ID: sandbox, State: "NOTREADY"}
			}, Candidate, "runtime still knows its sandbox"},
		{"network of a sandbox with a lease only: it is starting", object(CNIAttachment, dead),
			func(t *Inventory, _ History, _ *Settings) {
				t.Containerd.Known[sandbox] = "lease"
			}, Candidate, "containerd still knows its sandbox"},
		{"cri-o: containerd is no witness", object(Link, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Containerd = ContainerdInventory{Other: "cri-o"}
		}, Leftover, ""},

		{"kubelet does not answer", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.Err = broken
			t.Kubelet.Pods = nil
		}, Unknown, "kubelet could not be heard: broken"},
		{"kubelet does not answer, but the apiserver knows", object(Mount, living),
			func(t *Inventory, _ History, _ *Settings) { t.Kubelet.Err = broken; t.Kubelet.Pods = nil }, Live, ""},
		{"runtime does not answer", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Runtime.Err = broken
		}, Unknown, "gate runtime-heard"},
		{"containerd does not answer", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Containerd.Err = broken
		}, Unknown, "gate runtime-heard"},
		{"apiserver does not answer", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Cluster = ClusterInventory{Response: Response{Asked: true, Err: broken}}
		}, Unknown, "gate apiserver-heard"},
		{"apiserver not asked", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Cluster = ClusterInventory{}
		}, Unknown, "gate apiserver-heard"},
		{"empty list", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Cluster.Pods, t.Cluster.Shared, t.Cluster.Missing = map[string]PodFact{}, 0, 1
		}, Unknown, "gate list-is-ours is closed: none of kubelet's pods"},
		{"empty list, and kubelet has none either", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.Pods, t.Cluster.Pods, t.Cluster.Shared, t.Cluster.Wanted = nil, nil, 0, 0
		}, Unknown, "gate list-is-ours"},
		{"own pod is not in the list", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Own = other
		}, Unknown, "lacks the agent's own pod"},
		{"own pod is in the list", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Own = living
		}, Leftover, ""},
		{"list of another node", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Cluster.OnOtherNodes = []string{`a/b on "m"`}
		}, Unknown, "pods of other nodes"},
		{"old list", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Cluster.Wanted, t.Cluster.Missing = 10, 4
		}, Unknown, "lacks 4 of 10"},
		{"no answer about the node object", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Cluster.NodeErr = broken
		}, Unknown, "gate node-identity"},
		{"node of another machine", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Cluster.Machine = "x"
		}, Unknown, `machineID "x"`},
		{"node of another boot", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Cluster.Boot = "x"
		}, Unknown, `bootID "x"`},
		{"boot ID unreadable", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Cluster.Boot, t.Cluster.LocalBoot = "", ""
		}, Unknown, "gate node-identity"},
		{"host namespaces", object(Mount, dead), func(_ *Inventory, _ History, s *Settings) {
			s.HostNamespaces = false
		}, Unknown, "gate host-namespaces"},

		{"kubelet just started", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.Age = time.Minute
		}, Candidate, "kubelet has been up for 1m0s of 10m0s"},
		{"kubelet's process not found", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.AgeErr = broken
		}, Unknown, "gate kubelet-uptime"},
		{"runtime just started", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Runtime.Age = time.Minute
		}, Candidate, "gate runtime-uptime"},
		{"runtime not ready", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Runtime.Ready.OK = false
		}, Candidate, "gate runtime-ready"},
		{"network not ready, network object", object(Netns, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Runtime.NetReady.OK = false
		}, Candidate, "gate network-ready"},
		{"network not ready, other object", object(Cgroup, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Runtime.NetReady.OK = false
		}, Leftover, ""},
		{"kubelet works on orphans", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.Working = 1
		}, Candidate, "still terminating 1 pods"},
		{"kubelet has worked on it for twice the grace period", object(Mount, dead),
			func(t *Inventory, h History, s *Settings) {
				t.Kubelet.Working = 1
				for k, sighting := range h {
					sighting.First.SinceBoot -= 3 * s.Grace
					h[k] = sighting
				}
			}, Leftover, ""},
		{"kubelet works on more pods than that", object(Mount, dead), func(t *Inventory, h History, s *Settings) {
			t.Kubelet.Working = 2
			for k, sighting := range h {
				sighting.First.SinceBoot -= 3 * s.Grace
				h[k] = sighting
			}
		}, Candidate, "still terminating 2 pods"},
		{"kubelet does not count, nobody knows why", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.WorkingErr = errNoMetric
		}, Unknown, "its version is not known"},
		{"kubelet does not count yet", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.WorkingErr, t.Kubelet.Version = errNoMetric, "v1.27.0"
		}, Unknown, "its version is v1.27.0, so it has not received all its sources of pods yet"},
		{"kubelet does not count yet, says its Node", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.WorkingErr, t.Cluster.Version = errNoMetric, "v1.36.3-eks-1234567"
		}, Unknown, "version is v1.36.3-eks-1234567"},
		{"kubelet was updated, and its Node is of before", object(Mount, dead),
			func(t *Inventory, _ History, _ *Settings) {
				t.Kubelet.WorkingErr, t.Kubelet.Version, t.Cluster.Version = errNoMetric, "v1.27.1+k3s1", "v1.26.9"
			}, Unknown, "version is v1.27.1+k3s1"},
		{"kubelet's version is no version", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.WorkingErr, t.Kubelet.Version = errNoMetric, "unknown"
		}, Unknown, "cannot be parsed"},
		{"kubelet has never counted", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.WorkingErr, t.Kubelet.Version, t.Cluster.Version = errNoMetric, "v1.26.15", "v1.26.15"
		}, Leftover, ""},
		{"kubelet has never counted, says its Node", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.WorkingErr, t.Cluster.Version = errNoMetric, "v1.26.0"
		}, Leftover, ""},
		{"kubelet's count is missing", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Kubelet.WorkingErr = broken
		}, Unknown, "gate kubelet-not-working"},

		{"never seen before", object(Mount, dead), func(_ *Inventory, h History, _ *Settings) {
			clear(h)
		}, Candidate,
			"seen in 1 of 3 passes; 10m0s of 10m0s remaining; the apiserver must deny it twice, at least 30s apart"},
		{"another object by that name", object(Mount, dead), func(_ *Inventory, h History, _ *Settings) {
			h["mount/x"] = Sighting{Identity: Identity{"inode": "8"}, First: at(time.Minute), Last: at(2 * time.Minute),
				Passes: 9}
		}, Candidate, "seen in 1 of 3"},
		{"seen in an earlier boot", object(Mount, dead), func(_ *Inventory, h History, _ *Settings) {
			s := h["mount/x"]
			s.First.Boot = "boot-0"
			h["mount/x"] = s
		}, Candidate, "seen in 1 of 3"},
		{"seen too few times", object(Mount, dead), func(_ *Inventory, h History, _ *Settings) {
			s := h["mount/x"]
			s.Passes = 1
			h["mount/x"] = s
		}, Candidate, "not yet proven: seen in 2 of 3 passes"},
		{"seen too short", object(Mount, dead), func(_ *Inventory, h History, _ *Settings) {
			s := h["mount/x"]
			s.First, s.Denials = at(59*time.Minute-30*time.Second), []finding.Timestamp{at(59 * time.Minute)}
			h["mount/x"] = s
		}, Candidate, "not yet proven: 8m30s of 10m0s remaining"},
		{"denied once", object(Mount, dead), func(t *Inventory, h History, _ *Settings) {
			s := h["mount/x"]
			s.Denials = nil
			h["mount/x"] = s
		}, Candidate, "not yet proven: the apiserver must deny it twice, at least 30s apart"},
		{"the list is older than the first sighting", object(Mount, dead), func(t *Inventory, h History, s *Settings) {
			clear(h)
			t.Cluster.At = at(59 * time.Minute)
			*s = Settings{HostNamespaces: true, MassOrphaning: 3}
		}, Candidate, "the apiserver was not asked: since it was first seen"},
		{"its containers have an hour to end", object(Mount, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Runtime.Grace[dead] = time.Hour
		}, Candidate, "40m0s of 1h0m0s remaining"},
		{"settings of zero", object(Mount, dead), func(_ *Inventory, h History, s *Settings) {
			clear(h)
			*s = Settings{HostNamespaces: true, MassOrphaning: 3}
		}, Leftover, "seen in 1 passes over 0s"},

		{"static pod, all manifests have theirs", object(Cgroup, static), nil, Leftover, ""},
		{"static pod, manifests not read", object(Cgroup, static), func(t *Inventory, _ History, _ *Settings) {
			t.Static = StaticPodInventory{}
		}, Unknown, "manifests were not read"},
		{"static pod, manifests unreadable", object(Cgroup, static), func(t *Inventory, _ History, _ *Settings) {
			t.Static.Err = broken
		}, Unknown, "broken"},
		{"static pod, a manifest without pod", object(Cgroup, static), func(t *Inventory, _ History, _ *Settings) {
			t.Static.Missing = []string{"a/b"}
		}, Unknown, "manifest of a/b"},
		{"static pod with its own UID", object(Cgroup, dead), func(t *Inventory, _ History, _ *Settings) {
			t.Runtime.Pods[dead] = SandboxFact{Source: "file"}
			t.Static.Missing = []string{"a/b"}
		}, Unknown, "manifest of a/b"},
		{"static pod from a URL", object(Cgroup, static), func(t *Inventory, _ History, _ *Settings) {
			t.Runtime.Pods[static] = SandboxFact{Source: "http"}
		}, Unknown, "from http"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inventory, history, s := healthy(), seenLong(test.object), settings()
			if test.bend != nil {
				test.bend(&inventory, history, &s)
			}
			report, _ := Evaluate([]Object{test.object}, inventory, history, s, hour)
			got := report.Objects[0]
			if got.Verdict != test.want || !strings.Contains(got.Why, test.why) {
				t.Errorf("got %s: %s\nwant %s: … %s …\nwitnesses %v", got.Verdict, got.Why, test.want, test.why,
					got.Witnesses)
			}
		})
	}
}

func TestMassOrphaningStopsEverything(t *testing.T) {
	var objects []Object
	for _, digit := range "56789" {
		o := object(PodDirectory, strings.ReplaceAll(dead, "2", string(digit)))
		o.ID = o.Pod.UID
		objects = append(objects, o)
	}
	verdicts := func(n int) map[Verdict]int {
		counts := make(map[Verdict]int)
		report, _ := Evaluate(objects[:n], healthy(), seenLong(objects[:n]...), settings(), hour)
		for _, o := range report.Objects {
			counts[o.Verdict]++
		}
		return counts
	}
	if diff := cmp.Diff(map[Verdict]int{Leftover: 3}, verdicts(3)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[Verdict]int{Candidate: 4}, verdicts(4)); diff != "" {
		t.Error(diff)
	}
}

func TestGatesAreAlwaysAllThere(t *testing.T) {
	want := "kubelet-heard kubelet-uptime kubelet-not-working runtime-heard runtime-uptime runtime-ready " +
		"network-ready host-namespaces no-other-kubelet no-mass-orphaning apiserver-heard list-is-ours kubelet-sources node-identity"
	for name, inventory := range map[string]Inventory{"healthy": healthy(), "nothing was asked": {}} {
		report, _ := Evaluate([]Object{object(Mount, living)}, inventory, nil, settings(), hour)
		var names []string
		for _, g := range report.Gates {
			names = append(names, g.Name)
			if g.Why == "" && g.Name != "runtime-ready" && g.Name != "network-ready" {
				t.Errorf("%s: gate %s does not say why", name, g.Name)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

func TestQuietNodeHasOpenGates(t *testing.T) {
	inventory := healthy()
	inventory.Cluster = ClusterInventory{}
	report, _ := Evaluate([]Object{object(Mount, living)}, inventory, nil, settings(), hour)
	for _, g := range report.Gates {
		if !g.Open {
			t.Errorf("gate %s is closed: %s", g.Name, g.Why)
		}
	}
}

func TestNotConfiguredKubeletIsUnknown(t *testing.T) {
	inventory := healthy()
	inventory.Kubelet = KubeletInventory{Response: Response{Asked: true, Err: hosterr.ErrNotConfigured}}
	report, _ := Evaluate([]Object{object(Mount, dead)}, inventory, nil, settings(), hour)
	if report.Objects[0].Verdict != Unknown {
		t.Errorf("got %s", report.Objects[0].Verdict)
	}
}
