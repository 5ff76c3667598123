package discover

import (
	"crypto/x509"
	"encoding/pem"
	"path/filepath"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// nodeName finds the name under which kubelet registers this machine. Kubelet takes --hostname-override or the host
// name, lower-cased. If none runs, the name in the certificate from the cluster is better than a guess.
func (d *discoverer) nodeName(s kubeletSettings) {
	hostname, err := d.host.Files.Text("/proc/sys/kernel/hostname")
	if err != nil {
		d.note("host name: %v", err)
	}
	certified := d.certifiedName(s)
	switch {
	case s.override != "":
		d.NodeName = s.override
	case certified != "" && !s.running:
		d.NodeName = certified
	default:
		d.NodeName = hostname
	}
	d.NodeName = strings.ToLower(strings.TrimSpace(d.NodeName))
	if certified != "" && certified != d.NodeName {
		d.note("node name: %s, but kubelet's certificate is for %s", d.NodeName, certified)
	}
}

// certifiedName reads the name from kubelet's rotated client certificate: its subject is system:node:NAME.
func (d *discoverer) certifiedName(s kubeletSettings) string {
	data, err := d.host.Files.ReadOwned(filepath.Join(s.certificates(), "kubelet-client-current.pem"))
	if err != nil {
		return ""
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			d.note("kubelet's client certificate: %v", err)
			return ""
		}
		name, ok := strings.CutPrefix(certificate.Subject.CommonName, "system:node:")
		if !ok {
			d.note("kubelet's client certificate is for %q, not for a node",
				hosterr.Clip(certificate.Subject.CommonName))
			return ""
		}
		return name
	}
	return ""
}
