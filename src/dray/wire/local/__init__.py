"""What programs of one machine share: frames of runners, folders of blobs."""
