#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses the page of a server in a browser without a window, by keyboard, as check_site.py opens the documentation.

    ./run docs --check

It starts the example `serve` on made-up ratings and compares the lists of the page with those of POST /recommend.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from check_site import TIMEOUT, start_browser

WIDTHS = (400, 1400)
GENRES = ("unknown", "Comedy", "Crime", "Drama", "Horror", "Romance", "Sci-Fi")
FILTER = "genres contains 'Drama' and year >= 1990"
LIKED = "Fargo (1996)"
ALSO_LIKED = "Toy Story (1995)"


def write_ratings(folder):
    """Ratings of 60 films by 40 users who like every second genre, in the format of MovieLens 100K."""
    chance = random.Random(1)
    folder.mkdir()
    genres = [[1 + film % 6, 1 + film // 7 % 6] for film in range(60)]
    years = [1970 + film for film in range(30)] * 2
    # FILTER lets 7 films pass, also LIKED.
    titles = [LIKED if film == 26 else f"Film {film} ({years[film]})" for film in range(60)]
    (folder / "u.genre").write_text("".join(f"{name}|{i}\n" for i, name in enumerate(GENRES)))
    (folder / "u.occupation").write_text("other\n")
    (folder / "u.user").write_text("".join(f"{user}|30|M|other|12345\n" for user in range(1, 41)))
    (folder / "u.item").write_text("".join(
        f"{i + 1}|{titles[i]}|01-Jan-{years[i]}||"
        + "".join(f"|{int(genre in genres[i])}" for genre in range(len(GENRES))) + "\n" for i in range(60)))
    (folder / "u.data").write_text("".join(
        f"{user}\t{film + 1}\t{5 if genres[film][0] % 2 == user % 2 else 2}\t{880000000 + chance.randrange(1000)}\n"
        for user in range(1, 41) for film in chance.sample(range(60), 30)))


class Page:
    def __init__(self, browser, url, width):
        self.browser = browser
        self.url = url
        self.width = width
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
        browser.get(url)
        self.wait("the popular films", lambda: "by popularity" in self.text("found-title"))

    def text(self, element):
        return self.browser.find_element(By.ID, element).text

    def wait(self, what, condition):
        WebDriverWait(self.browser, TIMEOUT).until(lambda _: condition(), f"at {self.width} pixels: no {what}")

    def press(self, *keys):
        ActionChains(self.browser).send_keys(*keys).perform()

    def replace(self, text):
        ActionChains(self.browser).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).send_keys(text).perform()

    def tab_to(self, name):
        """Moves to the element with this name or id by the Tab key."""
        for _ in range(15):
            element = self.browser.switch_to.active_element
            if name in (element.get_attribute("name"), element.get_attribute("id")):
                return
            self.press(Keys.TAB)
        sys.exit(f"check_server_page: at {self.width} pixels, the Tab key does not lead to '{name}'.")

    def expect(self, what, actual, expected):
        if actual != expected:
            sys.exit(f"check_server_page: at {self.width} pixels, {what}: expected {expected}, but got {actual}.")

    def expect_list(self, **body):
        """The page shows what /recommend answers."""
        text = json.dumps({"show": ["year", "genres"], **body}).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + "/recommend", text), timeout=TIMEOUT) as reply:
            answer = json.load(reply)
        shown = zip(answer["items"], answer["shown"]["genres"], answer["shown"]["year"])
        expected = [[str(i + 1), item, ", ".join(genres), str(year)] for i, (item, genres, year) in enumerate(shown)]
        lines = self.browser.find_elements(By.CSS_SELECTOR, "#found tr")
        titles, *rows = [[cell.text for cell in line.find_elements(By.CSS_SELECTOR, "th, td")] for line in lines]
        places = [0, 1, titles.index("genres"), titles.index("year")]
        self.expect("the list", [[row[place] for place in places] for row in rows], expected)
        begin = f"{len(expected)} of {answer['passed']:,} items"
        self.expect("the line above", self.text("found-title")[: len(begin)], begin)
        self.expect("the list's version", f"version {answer['version']}," in self.text("found-title"), True)
        return answer

    def check_lists(self):
        self.expect_list()
        self.tab_to("user")
        self.press("7")
        self.tab_to("liked")
        self.press(LIKED, Keys.ENTER)
        self.wait("list for the user", lambda: "(query)" in self.text("found-title"))
        self.press(ALSO_LIKED, Keys.ENTER)
        self.wait("second film", lambda: self.text("own") == f"{LIKED} ×\n{ALSO_LIKED} ×")
        for left in (f"{ALSO_LIKED} ×", ""):
            self.browser.find_element(By.CSS_SELECTOR, "#own button").click()
            self.wait("removed film", lambda: self.text("own") == left)
        self.press(LIKED, Keys.ENTER)
        self.wait("film again", lambda: self.text("own") == f"{LIKED} ×")
        self.expect("the user's films", self.text("own"), f"{LIKED} ×")
        user = {"user": "7", "liked": [LIKED]}
        self.expect_list(user=user)

        self.tab_to("where")
        self.press(FILTER.replace(">=", ">"), Keys.HOME, "not (", Keys.ENTER)  # without the other parenthesis
        self.wait("error of the filter", lambda: self.text("where-problem").startswith("where: position"))
        field = self.browser.switch_to.active_element
        self.expect("the marked field", [field.get_attribute("id"), field.get_attribute("aria-invalid")],
                    ["where", "true"])
        self.replace(FILTER)
        self.tab_to("k")
        self.replace("7")
        self.tab_to("unseen")
        self.press(Keys.SPACE, Keys.ENTER)
        self.wait("filtered list", lambda: self.text("found-title").strip() != "")
        self.expect("the error", self.text("where-problem"), "")
        answer = self.expect_list(user=user, where=FILTER, k=7, exclude_seen=True)
        self.expect("the genres", all("Drama" in genres for genres in answer["shown"]["genres"]), True)

    def check_rest(self):
        overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        self.expect("what is wider than the window", self.browser.execute_script(overflow), 0)
        # The log also names each answer with an error, such as that of the wrong filter.
        errors = [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        self.expect("errors of scripts", [error for error in errors if "status of 400" not in error], [])
        self.browser.execute_script("showRecommend({recommend: null, columns: []})")
        self.expect("the part of a version without items", self.text("recommend"), "")
        self.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        self.browser.get(self.url)
        body = self.browser.find_element(By.TAG_NAME, "body").text
        self.expect("the page without scripts", body.startswith("This page needs JavaScript."), True)
        self.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the example serve")
    parser.add_argument("--data", help="the folder of MovieLens 100K, in place of made-up ratings")
    parser.add_argument("--screenshot", help="a file for a picture of the page")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data or pathlib.Path(folder) / "data"
        if not arguments.data:
            write_ratings(data)
        # One version, so that the page and this script get the same lists.
        options = ["--data", data, "--directory", f"{folder}/run", "--port", "0", "--every", "3600", "--seconds", "600"]
        server = subprocess.Popen([arguments.program, *options], stdout=subprocess.PIPE, text=True)
        browser = start_browser()
        try:
            url = next((line.split()[-1] for line in server.stdout if line.startswith("serving at ")), None)
            if url is None:
                sys.exit(f"check_server_page: {arguments.program} has not begun to serve. Its message is above.")
            for width in WIDTHS:
                page = Page(browser, url, width)
                page.check_lists()
                if arguments.screenshot and width == WIDTHS[-1]:
                    browser.save_screenshot(arguments.screenshot)
                page.check_rest()
        finally:
            browser.quit()
            server.terminate()
            server.wait()
    print(f"the page of the server at {' and '.join(map(str, WIDTHS))} pixels: 0 problems")


if __name__ == "__main__":
    main()
