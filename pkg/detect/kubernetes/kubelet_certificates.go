package kubernetes

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubelet-certificates reads kubelet's client certificate, by which it is a node to the apiserver, from where kubelet
// has it: the kubeconfig that it was started with (client-certificate or client-certificate-data) and
// <cert-dir>/kubelet-client-current.pem, of which the one that is valid for longer counts:
//
//	-----BEGIN CERTIFICATE-----
//	MIIBpDCCAUmgAwIBAgIRAP…
//
// and once an hour the serving certificate that kubelet's API (port 10250) shows in a TLS handshake; and adjtimex(2),
// whether the wall clock that both are judged by is kept right.
//
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/#certificate-rotation
//
// Kubelet has its client certificate renewed when 70 to 90 % of its time have passed (jitteryDuration in
// k8s.io/client-go/util/certificate), so that less than a tenth left means that this has failed; of a certificate for
// a year that is 36 days, and a week is soon enough. A kubelet whose client certificate has expired is nobody to the
// apiserver: the node is lost. That a signing request is pending only the apiserver knows; it shows here as a serving
// certificate that is missing (alert 80), or as an end that comes near.
//
// Known false alarms: a wall clock that is wrong makes everything look expired. Setting it makes the kernel call it
// unsynchronised; nothing is fatal then, and the message says so.

const (
	certificatesID = "kubelet-certificates"
	// certificateSoon is how long before its end a certificate is told of, or a tenth of its time where that is less.
	certificateSoon = 7 * 24 * time.Hour
	// servingEvery is how often the serving certificate is asked for: a handshake costs kubelet a signature.
	servingEvery = time.Hour
)

// KubeletCertificates finds certificates of kubelet that have expired, or soon will.
func KubeletCertificates() detect.Check {
	m := &servingState{}
	return detect.Check{
		ID:      certificatesID,
		Domain:  "kubernetes",
		Summary: "a certificate of kubelet has expired, or soon will",
		Advice: "`kubectl get csr` shows requests that nobody has approved: `kubectl certificate approve NAME`. " +
			"rotateCertificates must be true in kubelet's configuration. Expired: on kubeadm clusters remove " +
			"/etc/kubernetes/kubelet.conf and /var/lib/kubelet/pki/kubelet-client*, and join the node again with a " +
			"new bootstrap token. A self-signed serving certificate is renewed by removing kubelet.crt and " +
			"kubelet.key and restarting kubelet.",
		Doc: detect.Doc{
			Reads: []string{"kubelet's kubeconfig", "<cert-dir>/kubelet-client-current.pem",
				"TLS handshake with 127.0.0.1:10250 (hourly)", "adjtimex(2)"},
			Why: "With an expired client certificate kubelet cannot speak to the apiserver: the node becomes " +
				"NotReady and its pods are moved away. With an expired or missing serving certificate logs, exec, " +
				"port-forward and metrics of this node fail.",
			Faults: []detect.Fault{
				{Reason: "KubeletCertificateExpired", Severity: finding.Fatal,
					When: "the client certificate has expired by a clock that is synchronised; a warning by one that " +
						"is not, and for the serving certificate"},
				{Reason: "KubeletCertificateExpiring", Severity: finding.Warning,
					When: "less than 7 days are left, or less than a tenth of its time where that is shorter: " +
						"kubelet renews at 70 to 90 %"},
				{Reason: "KubeletCertificateNotYetValid", Severity: finding.Warning,
					When: "its time has not begun: the wall clock is behind"},
				{Reason: "KubeletServingCertificateMissing", Severity: finding.Warning,
					When: "kubelet's API answers every handshake with alert 80: its signing request was not approved"},
			},
			FalseAlarms: "A wrong wall clock: it is asked whether it is synchronised, and nothing is fatal where it is not.",
		},
		Condition: checkkit.KubeletProblem(),
		Every:     10 * time.Minute,
		Deadline:  10 * time.Second,
		Policy:    finding.Policy{Raise: finding.Hold{Looks: 2}, BlindAfter: time.Hour},
		Run:       m.observe,
	}
}

// servingState keeps what the last handshake showed.
type servingState struct {
	asked finding.Timestamp
	found *x509.Certificate // nil: it has none
}

func (m *servingState) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	now, unsure := h.Clock(), ""
	if h.TimeClock == nil {
		unsure = "it is not known whether the clock is right"
	} else if clock, err := h.TimeClock(); err != nil || !clock.Right() {
		unsure = "the clock is not synchronised, so it may be the clock that is wrong"
	}
	var found []finding.Finding
	unknown := map[finding.Subject]error{}
	client, clientErr := clientCertificate(h)
	switch {
	case client != nil:
		found = append(found, evaluateCertificate(clientSubject(), client, now.Wall, unsure)...)
	case clientErr != nil:
		unknown[clientSubject()] = clientErr
	}
	serving, err := m.serving(ctx, h, now)
	switch {
	case errors.Is(err, hosterr.ErrNoCertificate):
		found = append(found, finding.Finding{
			Check: certificatesID, Subject: servingSubject(), Severity: finding.Warning,
			Reason: "KubeletServingCertificateMissing",
			Message: "kubelet's API has no serving certificate, so that logs, exec and metrics of this node fail: " +
				"approve its signing request (`kubectl get csr`)",
		})
	case errors.Is(err, hosterr.ErrNotConfigured):
		if client == nil && clientErr == nil {
			return nil, finding.NotApplicable("kubelet uses no client certificate and serves no API")
		}
	case err != nil:
		unknown[servingSubject()] = err
	default:
		found = append(found, evaluateCertificate(servingSubject(), serving, now.Wall, unsure)...)
	}
	return found, finding.Partial(unknown)
}

func clientSubject() finding.Subject {
	return finding.Subject{Kind: "certificate", Name: "kubelet-client"}
}

func servingSubject() finding.Subject {
	return finding.Subject{Kind: "certificate", Name: "kubelet-serving"}
}

// serving returns the serving certificate as the last handshake showed it. One that is near its end is asked for in
// each look: kubelet may have a new one.
func (m *servingState) serving(ctx context.Context, h *host.Host, now finding.Timestamp) (*x509.Certificate, error) {
	if h.Kubelet.ServingCertificate == nil {
		return nil, hosterr.ErrNotConfigured
	}
	good := m.found != nil && len(evaluateCertificate(servingSubject(), m.found, now.Wall, "")) == 0
	if good && m.asked.Boot == now.Boot && now.Since(m.asked) < servingEvery {
		return m.found, nil
	}
	found, err := h.Kubelet.ServingCertificate(ctx)
	if err != nil {
		m.found = nil
		return nil, err
	}
	m.asked, m.found = now, found
	return found, nil
}

// clientCertificate returns the certificate by which kubelet is a node, nil where it uses none. Kubelet prefers the
// one that it has had signed over that of its kubeconfig only where rotation is on, which the node does not tell for
// certain; the one that is valid for longer is then at worst a healthy one that is not used.
func clientCertificate(h *host.Host) (*x509.Certificate, error) {
	where, err := discover.FindKubeletCredentials(h)
	if err != nil {
		return nil, fmt.Errorf("kubelet's flags: %w", err)
	}
	if where.Kubeconfig == "" {
		return nil, nil
	}
	rotated, rotatedErr := readCertificate(h.Files, where.CertDir+"/kubelet-client-current.pem")
	given, givenErr := kubeconfigCertificate(h.Files, where.Kubeconfig)
	switch {
	case given == nil && givenErr == nil:
		return nil, nil // a token or a program; what lies in CertDir is of other times
	case rotated != nil && (given == nil || rotated.NotAfter.After(given.NotAfter)):
		return rotated, nil
	case given != nil:
		return given, nil
	case rotatedErr != nil && !errors.Is(rotatedErr, fs.ErrNotExist):
		return nil, rotatedErr
	case givenErr != nil && (!errors.Is(givenErr, fs.ErrNotExist) || h.Kubelet.Process != nil):
		return nil, givenErr
	}
	return nil, nil
}

// kubeconfigCertificate is nil where the kubeconfig identifies in another way.
func kubeconfigCertificate(files host.Files, name string) (*x509.Certificate, error) {
	certificate, err := discover.ReadKubeconfig(files, name)
	if err != nil {
		return nil, fmt.Errorf("kubelet's kubeconfig: %w", err)
	}
	switch {
	case certificate.File != "":
		return readCertificate(files, certificate.File)
	case len(certificate.PEM) > 0:
		return checkkit.ParseCertificate(certificate.PEM, name)
	}
	return nil, nil
}
