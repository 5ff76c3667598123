//go:build !race

package remediate

const someHostileNodes = 500
