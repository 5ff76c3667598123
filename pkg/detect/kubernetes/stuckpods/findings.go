package stuckpods

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// stuckFindings reports individually the pods stuck for longest, and once a stage in which many pods are.
func stuckFindings(h *host.Host, stuck []latePod, s Settings) []finding.Finding {
	found := manyStuck(h, stuck, s.Many)
	for _, p := range stuck[:min(len(stuck), maxStuckPods)] {
		f := finding.Finding{
			Subject: finding.Subject{Kind: "pod", Name: p.name(), UID: string(p.pod.UID)}, Severity: finding.Warning,
			Facts: map[string]string{
				"stage": string(p.where.stage), "lateSeconds": strconv.Itoa(int(p.late.Seconds())),
				"phase": string(p.pod.Status.Phase),
				"pods":  p.name(),
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

// manyStuck reports the stage with the most pods.
func manyStuck(h *host.Host, stuck []latePod, many int) []finding.Finding {
	names := map[string][]string{}
	for _, p := range stuck {
		if !p.where.own {
			stage := "starting: " + string(p.where.stage)
			if p.ending {
				stage = "terminating: " + string(p.where.stage)
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
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "ManyPodsStuck",
		Message: fmt.Sprintf(
			"%d pods are stuck in the same stage (%s): the cause is most likely the node, not the pods: %s", len(pods),
			worst, finding.JoinFirst(pods, 5)),
		Facts: map[string]string{"stage": worst, "count": strconv.Itoa(len(pods)),
			"pods": finding.JoinFirst(pods, 50)},
	}}
}
