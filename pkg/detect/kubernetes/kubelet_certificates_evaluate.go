package kubernetes

import (
	"crypto/x509"
	"fmt"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

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
