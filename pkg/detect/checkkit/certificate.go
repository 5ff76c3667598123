package checkkit

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
)

// ParseCertificate reads the first certificate of a PEM file. name is its source, for errors.
func ParseCertificate(data []byte, name string) (*x509.Certificate, error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %s: %w", name, err)
		}
		return certificate, nil
	}
	return nil, fmt.Errorf("certificate %s: no certificate in it", name)
}
