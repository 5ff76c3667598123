package detect

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// podStage is where a pod is stuck. An empty stage is none: it is on its way.
type podStage struct {
	stage string // for machines: "volumes", "sandbox", "image" …
	text  string // what it waits for, with the evidence
	own   bool   // only the pod's own specification, or its controllers, can mend it
}

// tellStuck words what was found: the pods that have been stuck for longest one by one, and stages that many are in.
func tellStuck(h *host.Host, stuck []stuckPod, s StuckPodsSettings) []finding.Finding {
	found := manyStuck(h, stuck, s.Many)
	for _, p := range stuck[:min(len(stuck), maxStuckPods)] {
		f := finding.Finding{
			Check: stuckPodsID, Subject: finding.Subject{Kind: "pod", Name: p.name(), UID: string(p.pod.UID)}, Severity: finding.Warning,
			Facts: map[string]string{
				"stage": p.where.stage, "lateSeconds": strconv.Itoa(int(p.late.Seconds())), "phase": string(p.pod.Status.Phase),
				"pods": p.name(),
			},
		}
		if p.where.own {
			f.Severity = finding.Info
		}
		late := p.late.Round(time.Second)
		if p.ending {
			f.Reason = "PodStuckTerminating"
			if p.where.own {
				f.Reason = "PodHeldByFinalizers"
			}
			f.Message = fmt.Sprintf("still here %s after its grace period: %s", late, p.where.text)
		} else {
			f.Reason = "PodStuckStarting"
			if p.where.own {
				f.Reason = "PodCannotStart"
			}
			f.Message = fmt.Sprintf("has not started for %s: %s", late, p.where.text)
		}
		found = append(found, f)
	}
	return found
}

// manyStuck tells once of the stage that most pods are in.
func manyStuck(h *host.Host, stuck []stuckPod, many int) []finding.Finding {
	names := map[string][]string{}
	for _, p := range stuck {
		if !p.where.own {
			stage := "starting: " + p.where.stage
			if p.ending {
				stage = "terminating: " + p.where.stage
			}
			names[stage] = append(names[stage], p.name())
		}
	}
	worst := ""
	for stage, pods := range names {
		if len(pods) > len(names[worst]) || len(pods) == len(names[worst]) && stage < worst {
			worst = stage
		}
	}
	if many <= 0 || len(names[worst]) < many {
		return nil
	}
	pods := names[worst]
	slices.Sort(pods)
	return []finding.Finding{{
		Check: stuckPodsID, Subject: nodeSubject(h), Severity: finding.Warning, Reason: "ManyPodsStuck",
		Message: fmt.Sprintf("%d pods are stuck in the same stage (%s): the cause is most likely the node's, not theirs: %s", len(pods), worst, firstOf(pods, 5)),
		Facts:   map[string]string{"stage": worst, "count": strconv.Itoa(len(pods)), "pods": firstOf(pods, 50)},
	}}
}

func (p stuckPod) name() string {
	return plainText(p.pod.Namespace, 63) + "/" + plainText(p.pod.Name, 253)
}
