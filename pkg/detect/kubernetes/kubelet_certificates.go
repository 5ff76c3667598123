package kubernetes

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubelet-certificates reads kubelet's client certificate, its identity for the apiserver, from kubelet's own sources:
// the kubeconfig that it was started with (client-certificate or client-certificate-data) and
// <cert-dir>/kubelet-client-current.pem. The one that is valid for longer counts:
//
//	-----BEGIN CERTIFICATE-----
//	MIIBpDCCAUmgAwIBAgIRAP…
//
// and once an hour the serving certificate that kubelet's API (port 10250) presents in a TLS handshake; and
// adjtimex(2), whether the wall clock that both are compared with is synchronised.
//
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/#certificate-rotation
//
// Kubelet has its client certificate renewed after 70 to 90 % of its lifetime (jitteryDuration in
// k8s.io/client-go/util/certificate), so less than a tenth left means that this failed; for a certificate of one year
// that is 36 days, and a week is soon enough. A pending signing request, which only the apiserver knows, shows here as
// a missing serving certificate (alert 80), or as a certificate that expires soon.

const (
	// certificateSoon is how long before its end a certificate is reported, or a tenth of its lifetime if less.
	certificateSoon = 7 * 24 * time.Hour
	// servingEvery is how often the serving certificate is read: a handshake costs kubelet a signature.
	servingEvery = time.Hour
)

// KubeletCertificates finds certificates of kubelet that have expired or soon will.
func KubeletCertificates() detect.Check {
	m := &servingState{}
	return detect.Check{
		ID:      "kubelet-certificates",
		Domain:  "kubernetes",
		Summary: "a certificate of kubelet has expired, or soon will",
		Advice: "List requests that were not approved with `kubectl get csr`, and approve them with `kubectl " +
			"certificate approve NAME`. Set rotateCertificates to true in kubelet's configuration. If the " +
			"certificate has expired: on kubeadm clusters remove /etc/kubernetes/kubelet.conf and " +
			"/var/lib/kubelet/pki/kubelet-client*, and join the node again with a new bootstrap token. To renew a " +
			"self-signed serving certificate, remove kubelet.crt and kubelet.key and restart kubelet.",
		Doc: detect.Doc{
			Reads: []string{"kubelet's kubeconfig", "<cert-dir>/kubelet-client-current.pem",
				"TLS handshake with 127.0.0.1:10250 (hourly)", "adjtimex(2)"},
			Why: "With an expired client certificate kubelet cannot authenticate to the apiserver: the node becomes " +
				"NotReady and its pods are evicted. With an expired or missing serving certificate logs, exec, " +
				"port-forward and metrics of this node fail.",
			Faults: []detect.Fault{
				{Reason: "KubeletCertificateExpired", Severity: finding.Fatal,
					When: "the client certificate has expired by a synchronised clock; a warning by a clock that is " +
						"not synchronised, and for the serving certificate"},
				{Reason: "KubeletCertificateExpiring", Severity: finding.Warning,
					When: "less than 7 days are left, or less than a tenth of its lifetime if that is shorter: " +
						"kubelet renews at 70 to 90 %"},
				{Reason: "KubeletCertificateNotYetValid", Severity: finding.Warning,
					When: "its validity has not begun: the wall clock is behind"},
				{Reason: "KubeletServingCertificateMissing", Severity: finding.Warning,
					When: "kubelet's API answers every handshake with alert 80: its signing request was not approved"},
			},
			FalseAlarms: "With a wrong wall clock valid certificates appear expired: nothing is fatal while the " +
				"clock is not synchronised, and the message says so.",
		},
		Condition: checkkit.KubeletProblem(),
		Every:     10 * time.Minute,
		Policy:    finding.Policy{Raise: finding.Hold{Runs: 2}, BlindAfter: time.Hour},
		Run:       m.observe,
	}
}

// servingState keeps the certificate of the last handshake.
type servingState struct {
	asked finding.Timestamp
	found *x509.Certificate // nil: it has none
}

func (m *servingState) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	now, unsure := h.Clock(), ""
	if h.TimeClock == nil {
		unsure = "it is not known whether the clock is correct"
	} else if clock, err := h.TimeClock(); err != nil || !clock.Right() {
		unsure = "the clock is not synchronised, so it may be the clock that is wrong"
	}
	var results checkkit.Results
	client, clientErr := clientCertificate(h)
	if !results.Doubt(clientSubject(), clientErr) && client != nil {
		results.Add(evaluateCertificate(clientSubject(), client, now.Wall, unsure))
	}
	serving, err := m.serving(ctx, h, now)
	switch {
	case errors.Is(err, hosterr.ErrNoCertificate):
		results.Add(finding.Finding{
			Subject: servingSubject(), Severity: finding.Warning, Reason: "KubeletServingCertificateMissing",
			Message: "kubelet's API has no serving certificate, so that logs, exec and metrics of this node fail: " +
				"approve its signing request (`kubectl get csr`)",
		}, true)
	case errors.Is(err, hosterr.ErrNotConfigured):
		if client == nil && clientErr == nil {
			return nil, finding.NotApplicable("kubelet uses no client certificate and serves no API")
		}
	case !results.Doubt(servingSubject(), err):
		results.Add(evaluateCertificate(servingSubject(), serving, now.Wall, unsure))
	}
	return results.Done()
}

func clientSubject() finding.Subject {
	return finding.Subject{Kind: "certificate", Name: "kubelet-client"}
}

func servingSubject() finding.Subject {
	return finding.Subject{Kind: "certificate", Name: "kubelet-serving"}
}

// serving returns the serving certificate of the last handshake. If it expires soon, each run reads it again: kubelet
// may have a new one.
func (m *servingState) serving(ctx context.Context, h *host.Host, now finding.Timestamp) (*x509.Certificate, error) {
	if m.found != nil && m.asked.Boot == now.Boot && now.Since(m.asked) < servingEvery {
		if _, bad := evaluateCertificate(servingSubject(), m.found, now.Wall, ""); !bad {
			return m.found, nil
		}
	}
	found, err := host.Ask(ctx, "kubelet", h.Kubelet.ServingCertificate)
	if err != nil {
		m.found = nil
		return nil, err
	}
	m.asked, m.found = now, found
	return found, nil
}

// clientCertificate returns kubelet's client certificate, nil if it uses none. Kubelet prefers the rotated one to that
// of its kubeconfig only if rotation is on, which the node does not show for certain; the one valid for longer is at
// worst a healthy one that kubelet does not use.
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
		return nil, nil // a token or a program; certificates in CertDir are old
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

// kubeconfigCertificate returns nil if the kubeconfig authenticates in another way.
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

// readCertificate reads the first certificate in a PEM file; kubelet-client-current.pem holds the key too.
func readCertificate(files host.Files, name string) (*x509.Certificate, error) {
	data, err := files.Read(name)
	if err != nil {
		return nil, err
	}
	return checkkit.ParseCertificate(data, name)
}

// evaluateCertificate checks the validity of a certificate. Unsure is why the clock may be wrong, empty if it is right.
func evaluateCertificate(subject finding.Subject, c *x509.Certificate, now time.Time,
	unsure string) (finding.Finding, bool) {
	left := c.NotAfter.Sub(now)
	f := finding.Finding{
		Subject: subject, Severity: finding.Warning,
		Facts: map[string]string{
			"notBefore": c.NotBefore.UTC().Format(time.RFC3339), "notAfter": c.NotAfter.UTC().Format(time.RFC3339),
			"leftSeconds": strconv.Itoa(int(left.Seconds())), "subject": checkkit.Sanitize(c.Subject.String(), 200),
		},
	}
	what := "kubelet's serving certificate"
	if subject == clientSubject() {
		what = "kubelet's client certificate"
	}
	switch {
	case left <= 0:
		f.Reason = "KubeletCertificateExpired"
		f.Message = fmt.Sprintf("%s has expired at %s", what, f.Facts["notAfter"])
		if subject == clientSubject() {
			f.Message += ": the apiserver no longer accepts this node"
			if unsure == "" {
				f.Severity = finding.Fatal
			}
		} else {
			f.Message += ": logs, exec and metrics of this node fail where it is verified"
		}
	case now.Before(c.NotBefore):
		f.Reason = "KubeletCertificateNotYetValid"
		f.Message = fmt.Sprintf("%s is not valid before %s: the clock of this machine or of the signer is wrong", what,
			f.Facts["notBefore"])
	case left < min(certificateSoon, c.NotAfter.Sub(c.NotBefore)/10):
		f.Reason = "KubeletCertificateExpiring"
		f.Message = fmt.Sprintf("%s expires at %s and should have been renewed by now", what, f.Facts["notAfter"])
	default:
		return finding.Finding{}, false
	}
	if unsure != "" {
		f.Message += " (" + unsure + ")"
	}
	return f, true
}
