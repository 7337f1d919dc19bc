// Package browser looks at the agent's page as people do: with Chromium, in light and in dark,
// on a wide screen and on a narrow one, while the agent goes and comes again, and over mutual
// TLS with the certificates of those who may look and of those who may not. It leaves pictures
// of it in build/page-*.png.
package browser
