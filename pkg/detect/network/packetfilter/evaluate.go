package packetfilter

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

type packetFilterCheck struct{ kubelet checkkit.KubeletNetwork }

func (c *packetFilterCheck) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if !checkkit.KubeletInstalled(h) {
		return nil, finding.NotApplicable("no kubelet is installed on this host")
	}
	filter, err := network.ReadPacketFilter(h)
	if err != nil {
		return nil, err
	}
	pods, podsErr := discover.NodePods(ctx, h)
	if errors.Is(podsErr, hosterr.ErrNotConfigured) {
		podsErr = nil
	}
	if podsErr != nil {
		podsErr = fmt.Errorf("pods that may shadow kubelet's port: %w", podsErr)
	}
	port := portOf(h.Paths.KubeletAPI, 10250)
	var results checkkit.Results
	if len(filter.Legacy) > 0 { // a node that uses iptables-legacy: its rules may drop anything
		results.Doubt(finding.Subject{Kind: "packet-filter", Name: "iptables-legacy"}, fmt.Errorf("rules in "+
			"iptables-legacy are not read, and there are tables of it: %s",
			checkkit.Sanitize(strings.Join(filter.Legacy, ", "), 200)))
	}
	reported := map[finding.Subject]bool{}
	for _, sample := range c.samples(h, pods, port) {
		if drop := findDrop(filter, sample.packetSample); drop != nil {
			f := drop.finding(sample)
			results.Add(f, !reported[f.Subject])
			reported[f.Subject] = true
		}
	}
	shadowingPods(&results, pods, port)
	if healthz := portOf(h.Paths.KubeletHealthz, 10248); healthz != port {
		shadowingPods(&results, pods, healthz)
	}
	if podsErr != nil {
		return results.Inconclusive(podsErr)
	}
	return results.Done()
}

// portOf returns the port of one of kubelet's servers.
func portOf(server string, standard uint16) uint16 {
	address, err := url.Parse(server)
	if err != nil {
		return standard
	}
	port, err := strconv.ParseUint(address.Port(), 10, 16)
	if err != nil {
		return standard
	}
	return uint16(port)
}

func (d *packetDrop) finding(sample requiredPacket) finding.Finding {
	name := strings.Join([]string{"nft", d.chain.Family, checkkit.Sanitize(d.chain.Table, 64),
		checkkit.Sanitize(d.chain.Name, 64)}, " ")
	facts := map[string]string{"rule": checkkit.Sanitize(d.rule, 200), "hook": sample.hook}
	if d.count > 0 {
		facts["packets"] = fmt.Sprint(d.count)
	}
	message := fmt.Sprintf("%s drops new %s: %s, and no earlier rule accepts them", name, sample.what, facts["rule"])
	if d.translated && sample.hook == "forward" {
		message += " (those to services and host ports, whose address is translated, may pass)"
	}
	return finding.Finding{
		Subject: finding.Subject{Kind: "packet-filter", Name: name}, Severity: finding.Warning,
		Reason: sample.reason, Message: message, Facts: facts,
	}
}

// shadowingPods finds pods whose hostPort is one of kubelet's: the translation comes before any socket.
func shadowingPods(results *checkkit.Results, pods []corev1.Pod, port uint16) {
	for i := range pods {
		pod := &pods[i]
		if checkkit.PodFinished(pod) || pod.Spec.HostNetwork || !hasHostPort(pod, port) {
			continue
		}
		name := pod.Namespace + "/" + pod.Name
		results.Add(finding.Finding{
			Subject: finding.Subject{Kind: "pod", Name: name, UID: host.NodePodUID(pod)}, Severity: finding.Warning,
			Reason: "HostPortShadowsKubelet",
			Message: fmt.Sprintf("pod %s has hostPort %d, which is kubelet's: requests for kubelet on this node "+
				"reach the pod", name, port),
			Facts: map[string]string{"pods": name, "port": strconv.Itoa(int(port))},
		}, true)
	}
}

func hasHostPort(pod *corev1.Pod, port uint16) bool {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range container.Ports {
			if p.HostPort == int32(port) && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) {
				return true
			}
		}
	}
	return false
}
