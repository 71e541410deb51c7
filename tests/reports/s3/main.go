// Keeps objects in memory behind the protocol of S3, with one empty bucket "lake", for tests of the reports.
//
//	s3 127.0.0.1:9000
package main

import (
	"log"
	"net/http"
	"os"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

func main() {
	backend := s3mem.New()
	if err := backend.CreateBucket("lake"); err != nil {
		log.Fatal(err)
	}
	server := &http.Server{
		Addr:              os.Args[1],
		Handler:           gofakes3.New(backend).Server(),
		ReadHeaderTimeout: 10 * time.Second,
	}
	log.Fatal(server.ListenAndServe())
}
