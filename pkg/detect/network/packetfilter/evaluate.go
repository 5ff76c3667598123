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
	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
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
	var found []finding.Finding
	for _, sample := range c.samples(h, pods, port) {
		drop := findDrop(filter, sample.packetSample)
		if drop == nil {
			continue
		}
		f := drop.finding(sample)
		if !slices.ContainsFunc(found, func(other finding.Finding) bool { return other.Subject == f.Subject }) {
			found = append(found, f)
		}
	}
	found = append(found, shadowingPods(pods, port)...)
	if healthz := portOf(h.Paths.KubeletHealthz, 10248); healthz != port {
		found = append(found, shadowingPods(pods, healthz)...)
	}
	if podsErr != nil {
		return found, checkkit.Inconclusive(podsErr, notRead(filter))
	}
	return found, finding.Partial(notRead(filter))
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

// notRead returns the unknown subjects of a node that uses iptables-legacy: its rules may drop anything.
func notRead(filter packetfilter.PacketFilter) map[finding.Subject]error {
	if len(filter.Legacy) == 0 {
		return nil
	}
	return map[finding.Subject]error{
		{Kind: "packet-filter", Name: "iptables-legacy"}: fmt.Errorf("rules in iptables-legacy are not read, and "+
			"there are tables of it: %s", checkkit.Sanitize(strings.Join(filter.Legacy, ", "), 200)),
	}
}

// shadowingPods finds pods whose hostPort is one of kubelet's: the translation comes before any socket.
func shadowingPods(pods []corev1.Pod, port uint16) []finding.Finding {
	var found []finding.Finding
	for i := range pods {
		pod := &pods[i]
		if checkkit.PodFinished(pod) || pod.Spec.HostNetwork || !hasHostPort(pod, port) {
			continue
		}
		name := pod.Namespace + "/" + pod.Name
		found = append(found, finding.Finding{
			Subject: finding.Subject{Kind: "pod", Name: name, UID: host.NodePodUID(pod)}, Severity: finding.Warning,
			Reason: "HostPortShadowsKubelet",
			Message: fmt.Sprintf("pod %s has hostPort %d, which is kubelet's: requests for kubelet on this node "+
				"reach the pod", name, port),
			Facts: map[string]string{"pods": name, "port": strconv.Itoa(int(port))},
		})
	}
	return found
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
